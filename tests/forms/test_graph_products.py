"""The graph form's two products and their gradients, memory, determinism, and the edge lists that are kept."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import quadform as qf
from quadform.algebra import EdgeList, Operands
from quadform.algebra._layout import build_layout
from quadform.forms.graph import _lists, _products
from quadform.forms.graph._pairwise import pairwise
from quadform.forms.graph._products import Structure, sddmm, spmm


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def random_graph(n: int, m: int, edges: int) -> qf.Graph:
    """Edges named twice, and (where m * n is large enough) receivers without any."""
    index = torch.stack([torch.randint(0, m, (edges,)), torch.randint(0, max(n - n // 4, 1), (edges,))])
    return qf.Graph(torch.cat([index, index[:, : edges // 3]], 1), m if m == n else (m, n))


def structures() -> list[Structure]:
    """Sorted, unsorted, with repeated edges, with more edges than pairs, and without edges."""
    index = torch.tensor([[0, 0, 2, 2, 2, 4], [1, 3, 0, 0, 2, 1]])
    none = torch.zeros(0, dtype=torch.int64)
    return [
        Structure(index[0], index[1], 5, 4),
        Structure(index[0].flip(0), index[1].flip(0), 5, 4),
        Structure(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 1, 0, 1]), 2, 2),
        Structure(none, none, 3, 2),
    ]


@pytest.fixture(params=["rows", "bags"])
def product(request, monkeypatch):
    """Both ways to multiply: torch's sparse products, and what takes their place where torch has none."""
    if request.param == "bags":
        monkeypatch.setattr(_products, "_by_rows", lambda x: False)
    return request.param


@pytest.mark.parametrize("s", structures(), ids=["sorted", "unsorted", "dense multigraph", "empty"])
@pytest.mark.parametrize(("batch", "heads"), [(2, 2), (0, 2), (1, 0)])
def test_products_equal_their_formulas(product, s, batch, heads):
    a, b, w = (torch.randn(batch, heads, n, 3, dtype=torch.float64) for n in (s.queries, s.keys, s.receiver.numel()))
    w = w[..., 0]
    torch.testing.assert_close(sddmm(s, a, b), (a[:, :, s.receiver] * b[:, :, s.sender]).sum(-1))
    expected = torch.zeros_like(a).index_add(2, s.receiver, w[..., None] * b[:, :, s.sender])
    torch.testing.assert_close(spmm(s, w, b), expected)


@pytest.mark.parametrize("s", structures(), ids=["sorted", "unsorted", "dense multigraph", "empty"])
def test_products_have_first_and_second_derivatives(product, s):
    a, b, w = normal(1, 2, s.queries, 3), normal(1, 2, s.keys, 3), normal(1, 2, s.receiver.numel())
    for function, inputs in ((lambda *x: sddmm(s, *x), (a, b)), (lambda *x: spmm(s, *x), (w, b))):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


def test_products_take_strided_and_expanded_tensors_and_gradients(product):
    s = structures()[0]
    wide = torch.randn(1, 2, 4, 6, dtype=torch.float64, requires_grad=True)
    b, a = wide[..., ::2], torch.randn(1, 1, 5, 1, dtype=torch.float64, requires_grad=True).expand(2, 2, 5, 3)
    b = b.expand(2, -1, -1, -1)
    expected = (a[:, :, s.receiver] * b[:, :, s.sender]).sum()
    for x in (wide, a):
        torch.testing.assert_close(
            torch.autograd.grad(sddmm(s, a, b).sum(), x)[0],
            torch.autograd.grad(expected, x, retain_graph=True)[0],
        )
    w = torch.randn(1, 1, 6, dtype=torch.float64).expand(2, 2, -1).requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(spmm(s, w, b).sum(), w)[0], b[:, :, s.sender].sum(-1))


def test_a_value_off_the_edges_is_never_read(product):
    s = structures()[0]
    assert not {(2, 1), (4, 3)} & set(zip(s.receiver.tolist(), s.sender.tolist(), strict=True))
    b = torch.randn(1, 1, 4, 3, dtype=torch.float64)
    b[:, :, 3] = torch.nan
    reads = s.sender == 3
    assert torch.equal(sddmm(s, torch.ones(1, 1, 5, 3, dtype=torch.float64), b).isnan()[0, 0], reads)
    rows = spmm(s, torch.ones(1, 1, 6, dtype=torch.float64), b).isnan().all(-1)[0, 0]
    assert torch.equal(rows, torch.zeros(5, dtype=torch.bool).index_fill(0, s.receiver[reads], True))


def test_no_warning_reaches_the_user():
    _products._beta.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        x = normal(1, 1, 6, 2)
        qf.attend(x, x, x, random_graph(6, 6, 9), qf.Softmax(), form="graph").sum().backward()
    assert not seen


def test_pairwise_functions_have_derivatives_and_may_capture_tensors(monkeypatch):
    monkeypatch.setattr(_products, "CHUNK", 6)  # several chunks
    for s in structures():
        a, b, direction, shift = normal(1, 2, s.queries, 3), normal(1, 2, s.keys, 3), normal(1, 2, 1, 3), normal(3)

        def score(x, y, z):
            return (torch.tanh(x + y) * z).sum(-1)

        def captures(x, y, z, shift=shift):
            return score(x + shift, y, z)

        for function in (score, captures):
            expected = function(a[:, :, s.receiver], b[:, :, s.sender], direction)
            found = pairwise(function, s, a, b, direction)
            torch.testing.assert_close(found, expected)
            leaves = (a, b, direction, shift) if function is captures else (a, b, direction)
            cotangent = torch.randn_like(expected)
            torch.testing.assert_close(
                torch.autograd.grad(found, leaves, cotangent, materialize_grads=True, allow_unused=True),
                torch.autograd.grad(expected, leaves, cotangent, materialize_grads=True, allow_unused=True),
            )
        assert torch.autograd.gradgradcheck(lambda *x, s=s: pairwise(score, s, *x), (a, b, direction))


# Memory, determinism, what is kept


@pytest.mark.parametrize("weights", [qf.Softmax(), qf.AdditiveV2(), qf.Uniform("mean")], ids=str)
def test_nothing_of_edges_times_dimension_is_made(weights):
    count, heads, n, dim = 20_000, 2, 500, 64
    q = torch.randn(1, heads, n, dim, requires_grad=True)
    named = {"attention": torch.randn(heads, dim, requires_grad=True)} if weights == qf.AdditiveV2() else {}
    largest = 0

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.layout is torch.strided and out.untyped_storage().nbytes():
                largest = max(largest, out.untyped_storage().nbytes() // out.element_size())
            return out

    graph = qf.Graph(torch.randint(0, n, (2, count)), n)
    with Largest():
        qf.attend(q, q, q, graph, weights, tensors=named, form="graph").sum().backward()
    assert largest <= max(_products.CHUNK, 4 * count * heads) < count * heads * dim / 4


@pytest.mark.parametrize("weights", [qf.Softmax(), qf.AdditiveV2(), qf.Kernel("elu1")], ids=str)
def test_the_same_bits_every_time(product, weights):
    graph, attention = random_graph(300, 300, 4000), normal(2, 8, dtype=torch.float32)
    named = {"attention": attention} if weights == qf.AdditiveV2() else {}
    q, k, v = (normal(1, 2, 300, 8, dtype=torch.float32) for _ in range(3))

    def run(graph: qf.Graph) -> list[torch.Tensor]:
        y = qf.attend(q, k, v, graph, weights, tensors=named, form="graph")
        return [y, *torch.autograd.grad(y.square().sum(), (q, k, v))]

    first, second, anew = run(graph), run(graph), run(qf.Graph(graph.edge_index, 300))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, second, anew, strict=True))


def test_edge_lists_are_kept_within_a_bound_and_never_of_padded_calls(monkeypatch):
    monkeypatch.setattr(_lists, "_LISTS", type(_lists._LISTS)())
    monkeypatch.setattr(_lists, "KEPT_EDGES", 150)
    x = torch.randn(1, 1, 10, 2)

    def lists(edges: qf.Edges, **call) -> list[EdgeList]:
        qf.attend(x, x, x, edges, qf.Softmax(), form="graph", **call)
        return list(_lists._LISTS.values())

    (causal,) = lists(qf.Causal())
    assert lists(qf.Causal()) == [causal]
    assert lists(qf.Causal(), lengths=torch.tensor([7])) == [causal]
    everything = lists(qf.All())[-1]
    assert [len(e.receiver) for e in lists(qf.Window(2))] == [100, 27]
    assert lists(qf.All())[-1] is everything
    monkeypatch.setattr(_lists, "KEPT_EDGES", 10)
    assert len(lists(qf.Window(3))) <= 3


def test_parts_of_operands_are_their_rows_and_heads():
    graph = random_graph(5, 5, 8)
    x = torch.randn(3, 2, 5, 4)
    layout = build_layout(graph, 3, 5, 5, x.device, torch.tensor([2, 5, 4]))
    named = {"bias": torch.randn(1, 2, 8)}
    operands = Operands(x, x, x, layout, graph, 2, named, {"bias": ("B", "H", "E")})
    for b, row in enumerate(operands.parts("B")):
        assert torch.equal(row.v, x[b : b + 1])
        assert row.layout.k_len.tolist() == [[2, 5, 4][b]]
        for h, head in enumerate(row.parts("H")):
            assert head.heads == 1
            assert torch.equal(head.v, x[b : b + 1, h : h + 1])
            assert torch.equal(head.named("bias"), named["bias"][:, h : h + 1])


def test_cost_counts_edges_without_listing_them():
    def flops(edges: qf.Edges, n: int = 1000) -> float:
        x = torch.empty(1, 2, n, 8, device="meta")
        return qf.explain(x, x, x, edges, qf.Softmax()).costs["graph"].flops

    per_edge = 2 * 2 * (8 + 8)
    assert flops(qf.All()) == per_edge * 1000**2
    assert flops(qf.Causal()) == per_edge * 1000**2 / 2
    assert flops(qf.Window(9)) == per_edge * 1000 * 10
    assert flops(random_graph(1000, 1000, 300)) == per_edge * 400
