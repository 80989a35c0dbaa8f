"""Descriptions: printed, parsed, written and read, hashed, compared; and what their errors say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quadform as qf
from quadform.algebra import Description
from quadform.algebra._description import _CLASSES
from quadform.laws import ROWS

EXTRA: list[Description] = [
    qf.Global(first=2, last=1, indices=(4, 9)),
    qf.Window(3, 1, 2, 4).T,
    (qf.All() & qf.Causal()) | qf.TopK(3),
    qf.Stencil((3, 5), (1, 2), 2, ((0, 1), (2, 3)), "circular").T,
    qf.Buckets(3, 8) | qf.Window(1),
    qf.Elu1(),
    qf.Relu(),
    qf.Exp(),
    qf.Taylor2(0.5),
    qf.Taylor2(centre="fixed"),
    qf.Polynomial(3, 0.5, 0.25),
    qf.Hedgehog(),
    qf.Favor(32, 0.5),
    qf.Similarity("polynomial", 4, offset=0.5),
    qf.Table((1, 2), (3, 4)),
    qf.Softmax(bias=qf.EdgeBias()),
    qf.Softmax(bias=qf.PairBias(), scale=0.1, softcap=30.0),
    qf.Matrix(),
    qf.Uniform("symmetric"),
    qf.Additive(0.1, True),
    qf.Hybrid(qf.Window(2) | qf.Global(first=1), qf.Kernel("exp"), 0.5),
    qf.Via(4, qf.Uniform("mean"), qf.Softmax(), "pinv"),
]
ALL = list(
    dict.fromkeys(
        [part for row in ROWS for m in row.mixers for part in (m.edges, m.weights) if isinstance(part, Description)]
        + EXTRA
    )
)


@pytest.mark.parametrize("d", ALL, ids=str)
def test_printed_parsed_written_and_read_it_is_the_same(d: Any) -> None:
    assert qf.parse(str(d)) == d
    assert qf.from_json(d.to_json()) == d
    assert hash(qf.parse(str(d))) == hash(d)
    assert json.loads(d.to_json())["type"] == type(d).__name__


def test_every_class_of_description_is_tried() -> None:
    tried: set[type] = set()

    def visit(d: Any) -> None:
        tried.add(type(d))
        for f in dataclasses.fields(d):
            if isinstance(getattr(d, f.name), Description):
                visit(getattr(d, f.name))

    for d in ALL:
        visit(d)
    assert set(_CLASSES.values()) - tried == {qf.Graph}


def test_different_descriptions_differ() -> None:
    assert len({str(d) for d in ALL}) == len(ALL) == len({d.to_json() for d in ALL})


@pytest.mark.parametrize("d", ALL, ids=str)
def test_a_description_cannot_be_changed(d: Any) -> None:
    for f in dataclasses.fields(d):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(d, f.name, None)
    assert not any(isinstance(getattr(d, f.name), torch.Tensor) for f in dataclasses.fields(d))


def test_a_graph_keeps_integers_alone_and_is_equal_to_itself_alone() -> None:
    graph = qf.Graph([[0, 1, 2], [1, 2, 0]], 3)
    assert graph == graph
    assert graph != qf.Graph([[0, 1, 2], [1, 2, 0]], 3)
    for other in (qf.parse(str(graph)), qf.from_json(graph.to_json())):
        assert torch.equal(other.edge_index, graph.edge_index)
        assert other.num_nodes == graph.num_nodes
    assert len({graph, graph}) == 1


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: qf.Window(-1), "Window.left"),
    (lambda: qf.Window(1, 2.0), "Window.right"),  # type: ignore[arg-type]
    (lambda: qf.Window(1, dilation=0), "Window.dilation"),
    (lambda: qf.Window(True), "Window.left"),
    (lambda: qf.Window(1, sinks=-2), "Window.sinks"),
    (lambda: qf.Global(first=-1), "Global.first"),
    (lambda: qf.Global(last="x"), "Global.last"),  # type: ignore[arg-type]
    (lambda: qf.Global(indices=(1, -1)), "Global.indices"),
    (lambda: qf.Stencil(0), "Stencil.kernel"),
    (lambda: qf.Stencil(3, stride=0), "Stencil.stride"),
    (lambda: qf.Stencil((3, 3), dilation=(1, 1, 1)), "Stencil.dilation"),
    (lambda: qf.Stencil(3, border="mirror"), "Stencil.border"),
    (lambda: qf.Stencil(3, padding="full"), "Stencil.padding"),
    (lambda: qf.Stencil(3, padding=(1, -1)), "Stencil.padding"),
    (lambda: qf.Stencil(3, padding=1, border="valid"), "Stencil.padding"),
    (lambda: qf.Buckets(0, 2), "Buckets.n_hashes"),
    (lambda: qf.Buckets(1, 3), "Buckets.n_buckets"),
    (lambda: qf.TopK(0), "TopK.k"),
    (lambda: qf.Graph([[0, 5], [1, 1]], 3), "Graph.edge_index"),
    (lambda: qf.Graph(torch.zeros(2, 3), 3), "Graph.edge_index"),
    (lambda: qf.Graph(torch.zeros(3, 3, dtype=torch.int64), 3), "Graph.edge_index"),
    (lambda: qf.Graph([[0], [1]], (1, 2, 3)), "Graph.num_nodes"),  # type: ignore[arg-type]
    (lambda: qf.Graph([[0], [1]], -2), "Graph.num_nodes"),
    (lambda: qf.Causal() & 3, "And.right"),  # type: ignore[operator]
    (lambda: qf.Causal() | "x", "Or.right"),  # type: ignore[operator]
    (lambda: qf.Transposed(qf.Softmax()), "Transposed.inner"),  # type: ignore[arg-type]
    (lambda: qf.Softmax(content="yes"), "Softmax.content"),  # type: ignore[arg-type]
    (lambda: qf.Softmax(bias="alibi"), "Softmax.bias"),  # type: ignore[arg-type]
    (lambda: qf.Softmax(scale=0), "Softmax.scale"),
    (lambda: qf.Softmax(softcap=float("inf")), "Softmax.softcap"),
    (lambda: qf.Softmax(content=False), "Softmax.bias"),
    (lambda: qf.Softmax(content=False, bias=qf.Alibi(), scale=1.0), "Softmax.content"),
    (lambda: qf.Similarity("cosine"), "Similarity.function"),  # type: ignore[arg-type]
    (lambda: qf.Similarity("polynomial", 3), "Similarity.degree"),
    (lambda: qf.Similarity(scale=-1.0), "Similarity.scale"),
    (lambda: qf.Kernel("elu"), "feature_map"),
    (lambda: qf.Kernel(normalise=1), "Kernel.normalise"),  # type: ignore[arg-type]
    (lambda: qf.Kernel(decay="yes"), "Kernel.decay"),  # type: ignore[arg-type]
    (lambda: qf.Similarity(offset=-1.0), "Similarity.offset"),
    (lambda: qf.Kernel(qf.Taylor2(centre="running"), decay="scalar"), "Kernel.feature_map"),
    (lambda: qf.Polynomial(0), "Polynomial.degree"),
    (lambda: qf.Polynomial(2, -0.5), "Polynomial.offset"),
    (lambda: qf.Polynomial(2, scale=0.0), "Polynomial.scale"),
    (lambda: qf.Taylor2(centre="mean"), "Taylor2.centre"),  # type: ignore[arg-type]
    (lambda: qf.Hedgehog(0), "Hedgehog.width"),
    (lambda: qf.Favor(0), "Favor.num_features"),
    (lambda: qf.Favor(8, -1.0), "Favor.scale"),
    (lambda: qf.favor_projection(2, 0, 4, seed=0), "num_features"),
    (lambda: qf.favor_projection(2, 4, 4, seed=0.5), "seed"),  # type: ignore[arg-type]
    (lambda: qf.Taylor2(-1.0), "Taylor2.scale"),
    (lambda: qf.Uniform("max"), "Uniform.aggregate"),  # type: ignore[arg-type]
    (lambda: qf.Additive(-0.1), "Additive.negative_slope"),
    (lambda: qf.Additive(edge=None), "Additive.edge"),  # type: ignore[arg-type]
    (lambda: qf.AdditiveV2(float("nan")), "AdditiveV2.negative_slope"),
    (lambda: qf.Table(-1, 2), "Table.left"),
    (lambda: qf.Table((1, 2), 2), "Table.right"),
    (lambda: qf.Quadratic("yes"), "Quadratic.general"),  # type: ignore[arg-type]
    (lambda: qf.T5Buckets(2), "T5Buckets.num_buckets"),
    (lambda: qf.T5Buckets(32, 8), "T5Buckets.max_distance"),
    (lambda: qf.T5Buckets(bidirectional=2), "T5Buckets.bidirectional"),  # type: ignore[arg-type]
    (lambda: qf.Hybrid(qf.All(), qf.Kernel()), "Hybrid.near"),
    (lambda: qf.Hybrid(qf.Window(2), qf.Softmax()), "Hybrid.far"),  # type: ignore[arg-type]
    (lambda: qf.Hybrid(qf.Window(2), qf.Kernel(decay="scalar")), "Hybrid.far"),
    (lambda: qf.Hybrid(qf.Window(2), qf.Kernel(qf.Polynomial(3))), "Hybrid.far"),
    (lambda: qf.Hybrid(qf.Window(2), qf.Kernel(), -1.0), "Hybrid.scale"),
    (lambda: qf.Hybrid(qf.Window(2), qf.Kernel(qf.Taylor2(centre="running"))), "Hybrid.far"),
    (lambda: qf.Via(0, qf.Taps(), qf.Softmax()), "Via.nodes"),
    (lambda: qf.Via(2, qf.Dynamic(), qf.Softmax()), "Via.inner"),
    (lambda: qf.Via(2, qf.Taps(), qf.Taps()), "Via.outer"),
    (lambda: qf.Via(2, qf.Taps(), qf.Softmax(), "pinv"), "Via.inner"),
    (lambda: qf.Via(2, qf.Taps(), qf.Softmax(), "svd"), "Via.core"),  # type: ignore[arg-type]
    (lambda: qf.from_sliding_window(0), "window"),
    (lambda: qf.from_attention_window(3), "attention_window"),
    (lambda: qf.from_exact_window(-1), "window"),
    (lambda: qf.from_json("{"), "text"),
    (lambda: qf.from_json('{"type": "Nothing"}'), "type"),
    (lambda: qf.from_json('{"left": 3}'), "description"),
    (lambda: qf.from_json('{"type": "Window", "left": 3, "up": 1}'), "Window"),
    (lambda: qf.from_json('{"type": "Window"}'), "Window"),
    (lambda: qf.parse("Window(3"), "description"),
    (lambda: qf.parse("Window(3, 1, 1, 1, 1)"), "Window"),
    (lambda: qf.parse("Window(3, left=2)"), "left"),
    (lambda: qf.parse("Window(*[1])"), "description"),
    (lambda: qf.parse("__import__('os').getcwd()"), "description"),
]


@pytest.mark.parametrize(("make", "name"), BAD, ids=[f"{i}-{name}" for i, (_, name) in enumerate(BAD)])
def test_an_error_names_the_field_what_was_expected_and_what_came(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(qf.ArgumentError) as caught:
        make()
    text = str(caught.value)
    assert text.startswith(f"{name}: expected "), text
    assert ", got " in text, text


def test_other_libraries_counts() -> None:
    assert qf.from_sliding_window(4) == qf.Window(3)
    assert qf.from_flash_window((4, 1)) == qf.Window(4, 1)
    assert qf.from_exact_window(4) == qf.Window(4)
    assert qf.from_attention_window(4) == qf.Window(2, 2)
