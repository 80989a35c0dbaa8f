"""The three lines of reference code in each docstring, executed and held against the dense form."""

from __future__ import annotations

import inspect
import itertools
import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import quadform as qf
from quadform.algebra import Edges, Weights, build_layout

N, M, H, D = 5, 8, 2, 4


def reference(owner: Any) -> str:
    """The code under "Reference" in a docstring."""
    text = inspect.cleandoc(owner.__doc__)
    _, _, tail = text.partition("Reference")
    assert tail, f"{owner} has no reference"
    block = tail.split("\n", 2)[2]
    lines = list(itertools.takewhile(lambda line: not line or line.startswith("    "), block.split("\n")))
    return textwrap.dedent("\n".join(lines))


def run(owner: Any, **names: Any) -> dict[str, Any]:
    space: dict[str, Any] = {"torch": torch, "inf": torch.inf, "leaky_relu": F.leaky_relu, **names}
    exec(reference(owner), space)
    return space


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(edges: Edges, weights: Weights, /, queries: int = N, **tensors: Any) -> Tensor:
    q, k, v = normal(1, H, queries, D), normal(1, H, M, D, seed=1), normal(1, H, M, 3, seed=2)
    return qf.attend(q, k, v, edges, weights, tensors=tensors, form="dense", return_weights=True)[1]


EDGES: list[tuple[Edges, dict[str, Any]]] = [
    (qf.All(), {}),
    (qf.Causal(), {}),
    (qf.Window(2, 1), {"left": 2, "right": 1, "dilation": 1, "sinks": 0}),
    (qf.Window(2, 0, 2, 1), {"left": 2, "right": 0, "dilation": 2, "sinks": 1}),
]


@pytest.mark.parametrize(("edges", "names"), EDGES, ids=lambda x: str(x) if isinstance(x, Edges) else "")
def test_edges(edges: Edges, names: dict[str, Any]) -> None:
    mask = run(type(edges), n=N, m=M, **names)["mask"]
    relation = edges.relation(build_layout(edges, 1, N, M, torch.device("cpu")))[0, 0] > 0
    assert torch.equal(mask, relation)


def test_global() -> None:
    is_global = torch.zeros(M, dtype=torch.bool)
    is_global[[0, 3, 7]] = True
    mask = run(qf.Global, is_global=is_global)["mask"]
    w = matrix(qf.Global(first=1, last=1, indices=(3,)), qf.Uniform("sum"), M)
    assert torch.equal(w[0, 0] > 0, mask)


def test_graph() -> None:
    graph = qf.Graph([[0, 1, 1, 7], [2, 2, 2, 0]], (M, N))
    count = run(qf.Graph, edge_index=graph.edge_index, count=torch.zeros(N, M, dtype=torch.float64))["count"]
    assert torch.equal(matrix(graph, qf.Uniform("sum"))[0, 0], count)


def test_stencil() -> None:
    kernel, stride, dilation, left = 3, 2, 1, 1
    taps, image = normal(kernel), normal(M)
    v = {p: image[p] if 0 <= p < M else torch.zeros(()) for p in range(-5, M + 5)}
    count = qf.Stencil(kernel, stride, dilation).output_size(M)
    names = {"taps": taps, "v": v, "stride": stride, "dilation": dilation, "left": left, "kernel": kernel}
    out = [run(qf.Stencil, out={}, o=o, **names)["out"][o] for o in range(count)]
    y = qf.attend(
        None,
        None,
        image[None, None, :, None],
        qf.Stencil(kernel, stride),
        qf.Taps(),
        tensors={"taps": taps[None]},
        form="dense",
    )
    torch.testing.assert_close(y[0, 0, :, 0], torch.stack(out))


def test_buckets() -> None:
    q, k, rotations = normal(1, H, N, D), normal(1, H, M, D, seed=1), normal(1, 3, D, 2, seed=5)

    def bucket(x: Tensor) -> Tensor:
        turned = torch.einsum("bhnd,rdk->bhnrk", x, rotations[0])
        return torch.cat([turned, -turned], -1).argmax(-1)

    mask = run(qf.Buckets, q=q, k=k, bucket=bucket)["mask"]
    w = matrix(qf.Buckets(3, 4), qf.Softmax(), rotations=rotations)
    assert torch.equal(w > 0, mask)


def test_topk() -> None:
    q, k = normal(1, H, N, D), normal(1, H, M, D, seed=1)
    mask = torch.ones(N, M, dtype=torch.bool).tril(M - N)
    keep = run(qf.TopK, scores=q @ k.mT, mask=mask, k=3)["keep"]
    w = matrix(qf.Causal() & qf.TopK(3), qf.Softmax())
    assert torch.equal(w.nonzero(), torch.zeros_like(w).scatter(-1, keep, 1).nonzero())


def weights_names(weights: Any) -> dict[str, Any]:
    q, k = normal(1, H, N, D), normal(1, H, M, D, seed=1)
    mask = torch.ones(N, M, dtype=torch.bool).tril(M - N)
    mask = mask.double() if isinstance(weights, qf.Uniform) else mask
    return {"q": q, "k": k, "mask": mask, "scale": D**-0.5, "bias": 0.0, "phi": getattr(weights, "phi", None)}


@pytest.mark.parametrize(
    "weights", [qf.Softmax(), qf.Kernel("elu1"), qf.Kernel("taylor2"), qf.Uniform("mean")], ids=str
)
def test_weights(weights: Weights) -> None:
    w = run(type(weights), **weights_names(weights))["w"]
    torch.testing.assert_close(matrix(qf.Causal(), weights), w.expand(1, H, N, M), rtol=1e-12, atol=1e-14)


SIMILARITIES: dict[str, Callable[[Tensor], Tensor]] = {"exponential": torch.exp, "polynomial": lambda s: (1 + s) ** 2}


@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarity(name: Any) -> None:
    w = run(qf.Similarity, sim=SIMILARITIES[name], **weights_names(None))["w"]
    torch.testing.assert_close(matrix(qf.Causal(), qf.Similarity(name)), w, rtol=1e-12, atol=1e-14)


def test_hybrid() -> None:
    names = weights_names(qf.Kernel("elu1"))
    s = names["q"] @ names["k"].mT * D**-0.5
    d = torch.arange(M) - torch.arange(M - N, M)[:, None]
    gain = normal(H, 1, 1, seed=7)
    space = run(qf.Hybrid, near=(d <= 0) & (d >= -2), s=s, far_gain=gain, **names)
    w = matrix(qf.Causal(), qf.Hybrid(qf.Window(2), qf.Kernel("elu1")), far_gain=gain[:, 0, 0])
    torch.testing.assert_close(w, space["w"], rtol=1e-12, atol=1e-14)


def test_matrix() -> None:
    given, v = normal(1, H, N, M), normal(1, H, M, 3, seed=2)
    expected = run(qf.Matrix, matrix=given, v=v)["y"]
    q, k = normal(1, H, N, D), normal(1, H, M, D)
    y = qf.attend(q, k, v, qf.All(), qf.Matrix(), tensors={"matrix": given}, form="dense")
    torch.testing.assert_close(y, expected)


def test_via() -> None:
    q, k, v, projection = (
        normal(1, H, N, D),
        normal(1, H, M, D, seed=1),
        normal(1, H, M, 3, seed=2),
        normal(H, 3, M, seed=3),
    )
    expected = run(qf.Via, q=q, k=k, v=v, projection=projection, scale=D**-0.5)["y"]
    y = qf.attend(
        q, k, v, qf.All(), qf.Via(3, qf.Taps(), qf.Softmax()), tensors={"projection": projection}, form="dense"
    )
    torch.testing.assert_close(y, expected)


def test_taps() -> None:
    v, taps = normal(1, H, M, 1), normal(H, 3)
    expected = run(qf.Taps, v=v[..., 0], taps=taps, H=H)["y"]
    y = qf.attend(None, None, v, qf.Stencil(3, border="valid"), qf.Taps(), tensors={"taps": taps}, form="dense")
    torch.testing.assert_close(y[..., 0], expected)


def test_dynamic() -> None:
    t, left, v, logits = 3, 1, normal(M), normal(M, 3)
    around = {p: v[p] if 0 <= p < M else torch.zeros(()) for p in range(-3, M + 3)}
    expected = [run(qf.Dynamic, y={}, i=i, logits=logits, v=around, left=left, T=t)["y"][i] for i in range(M)]
    y = qf.attend(
        None,
        None,
        v[None, None, :, None],
        qf.Stencil(3),
        qf.Dynamic(),
        tensors={"logits": logits[None, None]},
        form="dense",
    )
    torch.testing.assert_close(y[0, 0, :, 0], torch.stack(expected))


def test_additive() -> None:
    receiver, sender = normal(1, H, N), normal(1, H, M)
    s = run(qf.Additive, receiver=receiver, sender=sender, negative_slope=0.2)["s"]
    w = matrix(qf.All(), qf.Additive(), receiver=receiver, sender=sender)
    torch.testing.assert_close(w, torch.softmax(s, -1))


def test_additive_v2() -> None:
    names, attention = weights_names(None), normal(H, D, seed=9)
    s = run(qf.AdditiveV2, negative_slope=0.2, attention=attention[:, None, None], **names)["s"]
    torch.testing.assert_close(matrix(qf.All(), qf.AdditiveV2(), attention=attention), torch.softmax(s, -1))


def bias_tensors(name: str) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    table = normal(H, 6)
    known: dict[str, tuple[Any, dict[str, Tensor], dict[str, Any]]] = {
        "Table": (qf.Table(3, 2), {"table": table}, {"table": table, "left": 3, "right": 2}),
        "Alibi": (qf.Alibi(), {"slopes": table[:, 0].abs()}, {"slopes": table[:, 0].abs()}),
        "T5Buckets": (qf.T5Buckets(6, 9), {"table": table}, {"table": table, "bucket": qf.T5Buckets(6, 9).bucket}),
        "PairBias": (qf.PairBias(), {"bias": normal(1, H, N, M)}, {"bias": normal(1, H, N, M), "b": 0}),
    }
    return known[name]


@pytest.mark.parametrize("name", ["Table", "Alibi", "T5Buckets", "PairBias"])
def test_biases(name: str) -> None:
    bias, tensors, names = bias_tensors(name)
    w = matrix(qf.All(), qf.Softmax(content=False, bias=bias), N, **tensors)
    for h, i, j in itertools.product(range(H), range(N), range(M)):
        score = _score(bias, names, h, i, j)
        first = _score(bias, names, h, i, 0)
        torch.testing.assert_close(w[0, h, i, j].log() - w[0, h, i, 0].log(), score - first, rtol=1e-9, atol=1e-9)


def _score(bias: Any, names: dict[str, Any], h: int, i: int, j: int) -> Tensor:
    position = torch.tensor(i + M - N) if bias.relative else i
    space = SimpleNamespace(score={})
    code = reference(type(bias)).replace("score[i, j]", "score")
    values = {"torch": torch, "h": h, "i": position, "j": torch.tensor(j) if bias.relative else j, **names}
    exec(code, values)
    space.score = values["score"]
    return torch.as_tensor(space.score)


def test_edge_bias() -> None:
    graph, given = qf.Graph([[0, 1, 7], [2, 2, 2]], (M, N)), normal(1, H, 3)
    w = matrix(graph, qf.Softmax(content=False, bias=qf.EdgeBias()), bias=given)
    scores = torch.stack([run(qf.EdgeBias, bias=given, b=0, h=1, e=e)["score"] for e in range(3)])
    torch.testing.assert_close(w[0, 1, 2, [0, 1, 7]], torch.softmax(scores, 0))


def test_quadratic() -> None:
    centre, alpha = normal(H, 1), normal(H).abs()
    w = matrix(qf.All(), qf.Softmax(content=False, bias=qf.Quadratic()), centre=centre, alpha=alpha)
    delta = (torch.arange(M) - torch.arange(M - N, M)[:, None]).double()[..., None]
    for h in range(H):
        score = run(qf.Quadratic, delta=delta, centre=centre[h], alpha=alpha[h])["score"]
        torch.testing.assert_close(w[0, h], torch.softmax(score, -1))


@pytest.mark.parametrize("phi", [qf.Elu1(), qf.Relu(), qf.Exp()], ids=str)
def test_elementwise_feature_maps(phi: Any) -> None:
    x = normal(6, 4) * 5
    torch.testing.assert_close(phi(x), run(type(phi), x=x)["phi"])
    assert phi(x).shape[-1] == phi.features(4)


PRODUCTS = [
    qf.Taylor2(),
    qf.Taylor2(0.3),
    qf.Polynomial(1),
    qf.Polynomial(2),
    qf.Polynomial(3, 0.7),
    qf.Polynomial(4, 0.0),
]


@pytest.mark.parametrize("phi", PRODUCTS, ids=str)
def test_product_feature_maps(phi: Any) -> None:
    q, k = normal(6, 4), normal(7, 4, seed=1)
    s = q @ k.mT * (0.5 if phi.scale is None else phi.scale)
    names = {name: getattr(phi, name) for name in ("degree", "offset") if hasattr(phi, name)}
    expected = run(type(phi), s=s, **names)["similarity"]
    torch.testing.assert_close(phi(q) @ phi(k).mT, expected, rtol=1e-12, atol=1e-12)
    assert phi(q).shape[-1] == phi.features(4)
    assert not phi.positive or bool((expected >= 0).all())


def test_hedgehog() -> None:
    x, weight = normal(1, H, M, D), normal(H, 3, D, seed=4)
    phi = qf.Hedgehog(3)(x, weight)
    torch.testing.assert_close(phi, run(qf.Hedgehog, x=x, feature_weight=weight)["phi"])
    assert phi.shape[-1] == qf.Hedgehog(3).features(D)


def test_favor() -> None:
    x, rows = normal(1, H, M, D), qf.favor_projection(H, 6, D, seed=0, dtype=torch.float64)
    names = {"x": x, "feature_projection": rows, "num_features": 6, "scale": D**-0.5}
    torch.testing.assert_close(qf.Favor(6)(x, rows), run(qf.Favor, **names)["phi"])
    w = run(qf.favor_projection, H=H, D=D)["w"]
    assert w.shape == qf.favor_projection(H, D, D, seed=0).shape


def test_attend() -> None:
    q, k, v = normal(1, H, N, D), normal(1, H, M, D, seed=1), normal(1, H, M, 3, seed=2)
    mask = torch.ones(N, M, dtype=torch.bool).tril(M - N)
    y = run(qf.attend, q=q, k=k, v=v, mask=mask)["y"]
    torch.testing.assert_close(qf.attend(q, k, v, qf.Causal(), qf.Softmax()), y)


def test_parse() -> None:
    run(qf.parse, parse=qf.parse, Causal=qf.Causal, Global=qf.Global)


def test_every_public_description_has_a_reference() -> None:
    plain = {"Description", "Edges", "Weights", "Bias", "And", "Or", "Transposed", "FeatureMap"}
    for name in dir(qf):
        cls = getattr(qf, name)
        if isinstance(cls, type) and issubclass(cls, qf.algebra.Description) and name not in plain:
            assert reference(cls).strip(), name
