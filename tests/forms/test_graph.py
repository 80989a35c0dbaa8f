"""The graph form: agreement with dense and with explicit message passing, empty rows, what must not spread."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import quadform as qf


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def random_graph(n: int, m: int, edges: int) -> qf.Graph:
    """Edges named twice, and (where m * n is large enough) receivers without any."""
    index = torch.stack([torch.randint(0, max(m, 1), (edges,)), torch.randint(0, max(n - n // 4, 1), (edges,))])
    return qf.Graph(torch.cat([index, index[:, : edges // 3]], 1), m if m == n else (m, n))


def worst_difference(edges, weights, *, n=9, m=None, heads=2, q_heads=2, tensors=None, dtype=torch.float64, **call):
    """Largest difference to form="dense" in float64, relative to the largest value, in the output and every gradient."""
    m = n if m is None else m
    reads = weights.reads or isinstance(edges, qf.Buckets | qf.TopK)
    q = normal(2, q_heads, n, 4, dtype=dtype) if reads or n != m else None
    k = normal(2, heads, m, 4, dtype=dtype) if reads else None
    v = normal(2, heads, m, 3, dtype=dtype)
    tensors = {name: x.to(dtype).requires_grad_() for name, x in (tensors or {}).items()}
    inputs = [x for x in (q, k, v, *tensors.values()) if x is not None]
    results = []
    for form, kind in (("dense", torch.float64), ("graph", dtype)):
        named = {name: x.to(kind) for name, x in tensors.items()}
        wide_q, wide_k = (None if x is None else x.to(kind) for x in (q, k))
        y = qf.attend(wide_q, wide_k, v.to(kind), edges, weights, tensors=named, form=form, **call)
        slope = torch.linspace(-1, 1, y.numel(), dtype=kind).view(y.shape)
        grads = torch.autograd.grad(y, inputs, slope, allow_unused=True, materialize_grads=True)
        results.append([y.detach().double(), *(g.double() for g in grads)])
    return max(
        (float((a - b).abs().max() / a.abs().max().clamp(min=1)) for a, b in zip(*results, strict=True) if a.numel()),
        default=0.0,
    )


def masks(n: int):
    """No padding, padding on either side, holes, a row without keys, and lengths."""
    sides = torch.ones(2, n, dtype=torch.bool)
    sides[0, : min(3, n)] = False
    sides[1, max(n - 2, 0) :] = False
    holes = sides.clone()
    holes[:, n // 2] = False
    empty = sides.clone()
    empty[0] = False
    shared = holes[:1].clone()
    return [{}, {"key_mask": sides}, {"key_mask": holes}, {"key_mask": empty}, {"key_mask": shared},
            {"lengths": torch.tensor([max(n - 4, 0), n])}]  # fmt: skip


# Agreement with dense


@pytest.mark.parametrize("weights", [
    qf.Softmax(), qf.Softmax(softcap=2.0), qf.Similarity("cauchy"), qf.Similarity(lambda a, b: (a * b).sum(-1).exp()),
    qf.Kernel("elu1"), qf.Kernel("relu", normalise=False), qf.Uniform("sum"), qf.Uniform("mean"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("edges", [
    qf.All(), qf.Causal(), qf.Window(2, 1, sinks=2), qf.Window(1, 1, 2) | qf.Global(first=1, last=1),
    qf.Causal() & qf.Window(3, 3), qf.Causal().T, qf.Buckets(2, 4), qf.TopK(3), qf.Stencil(3, border="reflect"),
], ids=str)  # fmt: skip
def test_sequences_agree_with_dense(edges, weights):
    tensors = {"rotations": torch.randn(1, 2, 4, 2)} if isinstance(edges, qf.Buckets) else {}
    for call in masks(9):
        assert worst_difference(edges, weights, tensors=tensors, q_heads=4 if weights.reads else 2, **call) < 1e-10


@pytest.mark.parametrize(("weights", "tensors"), [
    (qf.Softmax(), {}),
    (qf.Softmax(bias=qf.EdgeBias()), {"bias": (1, 2, "E")}),
    (qf.Softmax(bias=qf.PairBias()), {"bias": (2, 1, "n", "m")}),
    (qf.Additive(edge=True), {"receiver": (2, 2, "n"), "sender": (2, 2, "m"), "edge": (1, 1, "E")}),
    (qf.AdditiveV2(), {"attention": (2, 4)}),
    (qf.Kernel("exp"), {}),
    (qf.Similarity("gaussian"), {}),
    (qf.Uniform("mean"), {}),
    (qf.Uniform("sum"), {}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize(("n", "m", "count"), [(9, 9, 20), (4, 9, 12), (9, 4, 30), (3, 3, 0), (0, 3, 0), (5, 0, 0)])
def test_graphs_agree_with_dense(weights, tensors, n, m, count):
    graph = random_graph(n, m, count)
    sizes = {"n": n, "m": m, "E": graph.num_edges}
    named = {name: torch.randn([sizes.get(d, d) for d in shape]) for name, shape in tensors.items()}
    for call in (masks(m) if m else [{}])[:5]:
        assert worst_difference(graph, weights, n=n, m=m, tensors=named, **call) < 1e-10


@pytest.mark.parametrize("weights", [qf.Uniform("symmetric"), qf.Uniform("mean")], ids=str)
def test_degrees_count_repeated_edges_and_kept_senders(weights):
    for edges in (random_graph(9, 9, 25), random_graph(9, 9, 25) & qf.Causal(), qf.Window(2, 1)):
        for call in masks(9)[:5]:
            assert worst_difference(edges, weights, **call) < 1e-10


@pytest.mark.parametrize("decay", ["scalar", "feature"])
def test_decay_agrees_with_dense(decay):
    gates = {"log_decay": -torch.rand(2, 2, 9, *[4] * (decay == "feature"))}
    for call in masks(9):
        assert worst_difference(qf.Causal(), qf.Kernel("elu1", decay=decay), tensors=gates, **call) < 1e-10


def test_hybrid_taps_dynamic_and_two_hops_agree_with_dense():
    for call in masks(9):
        hybrid = qf.Hybrid(qf.Window(2, sinks=1), qf.Kernel("elu1"))
        assert worst_difference(qf.Causal(), hybrid, **call) < 1e-10
        for border in ("zeros", "renormalise", "circular"):
            stencil = qf.Stencil(3, border=border)
            assert worst_difference(stencil, qf.Taps(), tensors={"taps": torch.randn(2, 3)}, **call) < 1e-10
            logits = {"logits": torch.randn(2, 2, 9, 3)}
            assert worst_difference(stencil, qf.Dynamic(), tensors=logits, **call) < 1e-10
        assert worst_difference(qf.All(), qf.Via(3, qf.Uniform("mean"), qf.Softmax()), **call) < 1e-10
    taps = {"taps": torch.randn(2, 4)}
    assert worst_difference(qf.Stencil(4, 2).T, qf.Taps(), n=10, m=5, tensors=taps) < 1e-10


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_lower_precision_computes_in_float32(dtype, bound):
    for edges in (random_graph(9, 9, 25), qf.Window(3), qf.Buckets(1, 1)):
        assert worst_difference(edges, qf.Softmax(), dtype=dtype) < bound
    x = torch.randn(1, 1, 5, 2, dtype=dtype)
    assert qf.attend(x, x, x, qf.Causal(), qf.Softmax(), form="graph").dtype == dtype


# Rows without edges, and what must not spread


def test_rows_without_edges_or_with_no_finite_score_are_zero_with_zero_gradient():
    graph = qf.Graph(([0, 1, 2, 0], [0, 0, 1, 1]), 4)
    q, k, v, bias = normal(1, 1, 4, 2), normal(1, 1, 4, 2), normal(1, 1, 4, 2), normal(1, 1, 4)
    minus = torch.tensor([0.0, 0.0, -torch.inf, -torch.inf], dtype=torch.float64)
    y = qf.attend(q, k, v, graph, qf.Softmax(bias=qf.EdgeBias()), tensors={"bias": bias + minus}, form="graph")
    assert torch.equal(y[0, 0, 1:], torch.zeros_like(y[0, 0, 1:]))
    grads = torch.autograd.grad(y.sum(), (q, k, v, bias))
    assert all(g.isfinite().all() for g in grads)
    assert not grads[0][0, 0, 1:].any()
    assert not grads[2][0, 0, 2:].any()
    assert not grads[3][0, 0, 2:].any()


@pytest.mark.parametrize("call", [{}, {"lengths": torch.tensor([5, 8])}])
@pytest.mark.parametrize("edges", [qf.Window(2, 2), random_graph(8, 8, 20), qf.Buckets(1, 1)], ids=str)
def test_nan_in_one_sequence_reaches_no_other(edges, call):
    q, k, v = (torch.randn(2, 1, 8, 3) for _ in range(3))
    leaves = [torch.cat([torch.full_like(x[:1], torch.nan), x[1:]]).requires_grad_() for x in (q, k, v)]
    a, b, c = leaves
    y = qf.attend(a, b, c, edges, qf.Softmax(), form="graph", **call)
    assert torch.equal(y[1], qf.attend(q, k, v, edges, qf.Softmax(), form="graph", **call)[1])
    assert all(g[1].isfinite().all() for g in torch.autograd.grad(y.sum(), leaves))


def test_dropout_drops_edges_and_keeps_the_mean():
    v, graph = torch.ones(1, 1, 2000, 1), qf.Graph(torch.stack([torch.arange(2000), torch.zeros(2000).long()]), 2000)
    draws = [
        float(qf.attend(None, None, v, graph, qf.Uniform("mean"), form="graph", dropout_p=0.3)[0, 0, 0])
        for _ in range(20)
    ]
    assert all(0.8 < y < 1.2 for y in draws)
    assert len(set(draws)) > 5


def test_what_the_form_refuses():
    v, graph = torch.ones(1, 1, 3, 1), qf.Graph(([0], [1]), 3)
    with pytest.raises(qf.Refused, match="matrix"):
        qf.attend(None, None, v, graph, qf.Uniform("mean"), form="graph", return_weights=True)
    with pytest.raises(qf.Refused, match="recurrent"):
        qf.attend(None, None, v, graph, qf.Uniform("mean"), form="graph", return_state=True)


def test_duplicates_count_and_empty_rows_are_zero():
    graph = qf.Graph([[0, 0, 1, 3], [2, 2, 2, 0]], 4)
    q, k, v = (torch.randn(1, 1, 4, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    y = qf.attend(q, k, v, graph, qf.Softmax(), form="graph")
    e = torch.exp((q[0, 0, 2] * k[0, 0]).sum(-1) * 2**-0.5)
    assert torch.allclose(y[0, 0, 2], (2 * e[0] * v[0, 0, 0] + e[1] * v[0, 0, 1]) / (2 * e[0] + e[1]))
    assert torch.equal(y[0, 0, 0], v[0, 0, 3])
    assert y[0, 0, 1].abs().sum() == y[0, 0, 3].abs().sum() == 0
    (grad,) = torch.autograd.grad(y.sum(), q)
    assert grad[0, 0, 1].abs().sum() == 0 and grad.isfinite().all()


def test_scores_of_minus_infinity_give_zero():
    graph = qf.Graph([[0, 1], [1, 1]], 2)
    v = torch.randn(1, 1, 2, 3, requires_grad=True)
    bias = torch.full((1, 1, 2), -torch.inf)
    y = qf.attend(v, v, v, graph, qf.Softmax(bias=qf.EdgeBias()), tensors={"bias": bias}, form="graph")
    assert y.abs().sum() == 0
    assert torch.autograd.grad(y.sum(), v)[0].abs().sum() == 0


def test_bipartite_graphs_and_edge_biases_with_gradient():
    graph = qf.Graph(torch.stack([torch.randint(0, 7, (30,)), torch.randint(0, 4, (30,))]), (7, 4))
    q = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 2, 7, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias = torch.randn(1, 2, 30, dtype=torch.float64, requires_grad=True)
    inputs = (q, k, v, bias)

    def run(form: str) -> list[torch.Tensor]:
        y = qf.attend(q, k, v, graph, qf.Softmax(bias=qf.EdgeBias()), tensors={"bias": bias}, form=form)
        return [y, *torch.autograd.grad(y.square().sum(), inputs)]

    for a, b in zip(run("graph"), run("dense"), strict=True):
        assert (a - b).abs().max() < 1e-12


# Message passing, as loops


GRAPH = qf.Graph(([0, 1, 1, 2, 3, 3, 0, 4], [1, 0, 0, 1, 2, 3, 3, 0]), 6)


def passing(message) -> torch.Tensor:
    """sum over edges of message(receiver, sender)."""
    y = torch.zeros(6, 3, dtype=torch.float64)
    for j, i in GRAPH.edge_index.T.tolist():
        y[i] = y[i] + message(i, j)
    return y


def softmax_passing(score, v: torch.Tensor) -> torch.Tensor:
    total = passing(lambda i, j: torch.exp(score(i, j)).expand(3))
    return torch.where(total > 0, passing(lambda i, j: torch.exp(score(i, j)) * v[j]) / total, 0)


@torch.no_grad()
def test_known_layers_are_special_cases():
    q, k, v = (normal(1, 1, 6, 3) for _ in range(3))
    a, b, x = q[0, 0], k[0, 0], v[0, 0]
    left, right, attention = normal(1, 1, 6), normal(1, 1, 6), normal(1, 3)
    degree = torch.bincount(GRAPH.edge_index[1], minlength=6).double()
    cases = {
        qf.Uniform("sum"): ({}, passing(lambda i, j: x[j])),
        qf.Uniform("mean"): ({}, passing(lambda i, j: x[j] / degree[i])),
        qf.Uniform("symmetric"): (
            {},
            passing(lambda i, j: x[j] / (degree[i] * degree[j]).sqrt() if degree[j] else torch.zeros(3)),
        ),
        qf.Additive(): (
            {"receiver": left, "sender": right},
            softmax_passing(lambda i, j: F.leaky_relu(left[0, 0, i] + right[0, 0, j], 0.2), x),
        ),
        qf.AdditiveV2(): (
            {"attention": attention},
            softmax_passing(lambda i, j: F.leaky_relu(a[i] + b[j], 0.2) @ attention[0], x),
        ),
        qf.Softmax(): ({}, softmax_passing(lambda i, j: a[i] @ b[j] / math.sqrt(3), x)),
    }
    for weights, (tensors, expected) in cases.items():
        y = qf.attend(q, k, v, GRAPH, weights, tensors=tensors, form="graph")
        torch.testing.assert_close(y[0, 0], expected, msg=str(weights))
    scaled = {"row_scale": degree.view(1, 1, 6)}
    y = qf.attend(q, k, v, GRAPH, qf.Uniform("mean"), tensors=scaled, form="graph")
    torch.testing.assert_close(y[0, 0], passing(lambda i, j: x[j]))


@pytest.mark.parametrize("weights", [qf.Softmax(), qf.Kernel("elu1"), qf.Uniform("symmetric")], ids=str)
def test_renumbering_nodes_renumbers_outputs(weights):
    graph, order = random_graph(12, 12, 30), torch.randperm(12)
    q, k, v = (torch.randn(1, 2, 12, 3, dtype=torch.float64) for _ in range(3))
    moved = qf.Graph(order.argsort()[graph.edge_index], 12)
    y = qf.attend(q, k, v, graph, weights, form="graph")
    z = qf.attend(q[:, :, order], k[:, :, order], v[:, :, order], moved, weights, form="graph")
    torch.testing.assert_close(z, y[:, :, order])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_layers_reach_as_many_hops(layers):
    path = qf.Graph(([*range(7), *range(8)], [*range(1, 8), *range(8)]), 8)  # i -> i + 1, and to itself
    x = torch.randn(1, 1, 8, 3, dtype=torch.float64)
    other = x.clone()
    other[:, :, 2] += 1

    def stack(h: torch.Tensor) -> torch.Tensor:
        for _ in range(layers):
            h = qf.attend(h, h, h, path, qf.Softmax(), form="graph")
        return h

    moved = (stack(x) != stack(other)).any(-1)[0, 0]
    assert moved.tolist() == [2 <= i <= 2 + layers for i in range(8)]
