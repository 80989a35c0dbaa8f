"""Every positional edge set against a function of two integers, at every length, alignment and padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quadform as qf
from quadform.algebra import And, Edges, Or, Transposed

EDGES: list[Edges] = [
    qf.All(),
    qf.Causal(),
    qf.Window(2),
    qf.Window(1, 3),
    qf.Window(2, 1, dilation=2),
    qf.Window(3, dilation=3, sinks=1),
    qf.Window(1, 1, sinks=3),
    qf.Global(first=1),
    qf.Global(last=2),
    qf.Global(first=1, last=1, indices=(0, 3, 5)),
    qf.Window(1) | qf.Global(first=1),
    qf.Causal() & qf.Window(2, 4),
    qf.Causal().T,
    qf.Window(0, 2).T | qf.Window(3),
    (qf.Causal() & qf.Global(first=2)) | qf.Window(1, 1),
]


def member(edges: Any, i: int, j: int, length: int) -> int:
    """How often (receiver position i, sender position j) is an edge in a sequence of that length."""
    if isinstance(edges, qf.All):
        return 1
    if isinstance(edges, qf.Causal):
        return int(j <= i)
    if isinstance(edges, qf.Window):
        ahead = j - i <= edges.right * edges.dilation
        near = any(j - i == t * edges.dilation for t in range(-edges.left, edges.right + 1))
        return int(near or (0 <= j < edges.sinks and ahead))
    if isinstance(edges, qf.Global):
        chosen = {*range(edges.first), *edges.indices, *(length - 1 - t for t in range(edges.last))}
        return int(any(p in chosen and 0 <= p < length for p in (i, j)))
    if isinstance(edges, And):
        return member(edges.left, i, j, length) * member(edges.right, i, j, length)
    if isinstance(edges, Or):
        return max(member(edges.left, i, j, length), member(edges.right, i, j, length))
    assert isinstance(edges, Transposed)
    return member(edges.inner, j, i, length)


def weights_of(edges: Edges, queries: int, keys: int, **options: Any) -> torch.Tensor:
    q, k, v = torch.zeros(1, 1, queries, 1), torch.zeros(1, 1, keys, 1), torch.ones(1, 1, keys, 1)
    return qf.attend(q, k, v, edges, qf.Uniform("sum"), form="dense", return_weights=True, **options)[1][0, 0]


@pytest.mark.parametrize("edges", EDGES, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (3, 8), (9, 4), (1, 6), (1, 1)])
def test_dense_edges_are_those_of_the_definition(edges: Edges, queries: int, keys: int) -> None:
    w = weights_of(edges, queries, keys)
    for i in range(queries):
        for j in range(keys):
            assert w[i, j] == member(edges, i + keys - queries, j, keys), (i, j)


@pytest.mark.parametrize("edges", EDGES, ids=str)
@pytest.mark.parametrize(("left", "right"), [(0, 3), (2, 0), (2, 1)])
def test_padding_moves_positions_and_not_edges(edges: Edges, left: int, right: int) -> None:
    n, keep = 6, torch.zeros(1, 6 + left + right, dtype=torch.bool)
    keep[0, left : left + n] = True
    w = weights_of(edges, n + left + right, n + left + right, key_mask=keep)
    for i in range(n):
        for j in range(n + left + right):
            inside = left <= j < left + n
            assert w[i + left, j] == (member(edges, i, j - left, n) if inside else 0), (i, j)


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_holes_remove_senders_and_keep_positions(edges: Edges) -> None:
    keep = torch.tensor([[True, False, True, True, False, False, True, True]])
    w = weights_of(edges, 8, 8, key_mask=keep)
    for i in range(8):
        for j in range(8):
            assert w[i, j] == (member(edges, i, j, 8) if keep[0, j] else 0), (i, j)


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_given_positions_are_the_ones_that_count(edges: Edges) -> None:
    q_pos, k_pos = torch.tensor([5, 1, 8]), torch.tensor([0, 2, 5, 6, 8])
    w = weights_of(edges, 3, 5, positions=(q_pos, k_pos))
    for i, p in enumerate(q_pos.tolist()):
        for j, s in enumerate(k_pos.tolist()):
            assert w[i, j] == member(edges, p, s, 9), (p, s)


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_the_edge_list_is_the_same_set_sorted_by_receiver(edges: Edges) -> None:
    from quadform.algebra import build_layout

    layout = build_layout(edges, 1, 7, 9, torch.device("cpu"))
    found = edges.edge_list(layout, rows=2)
    expected = [(i, j) for i in range(7) for j in range(9) if member(edges, i + 2, j, 9)]
    assert list(zip(found.receiver.tolist(), found.sender.tolist(), strict=True)) == expected
    assert found.offset[:, 0].tolist() == [j - i - 2 for i, j in expected]


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_what_an_edge_set_says_about_itself_holds(edges: Edges) -> None:
    pairs = [(i, j) for i in range(12) for j in range(12) if member(edges, i, j, 12)]
    low, high = edges.reach
    assert all((low is None or i - j <= low) and (high is None or j - i <= high) for i, j in pairs)
    assert not edges.is_causal or all(j <= i for i, j in pairs)
    assert edges.is_causal or ".T" in str(edges) or any(j > i for i, j in pairs)
    assert isinstance(edges.positional, bool)
    assert not edges.content


@pytest.mark.parametrize("border", ["zeros", "renormalise", "replicate", "circular", "reflect"])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (4, 2, 1), (3, 1, 3), (2, 3, 2)])
@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_stencil_taps_lead_where_padding_by_torch_leads(
    border: str, kernel: int, stride: int, dilation: int, size: int
) -> None:
    stencil = qf.Stencil(kernel, stride, dilation, border=border)
    (low, _), count = stencil.pads[0], stencil.output_size(size)
    taps = torch.rand(1, kernel, generator=torch.Generator().manual_seed(0))
    _, w = qf.attend(
        None,
        None,
        torch.ones(1, 1, size, 1),
        stencil,
        qf.Taps(),
        tensors={"taps": taps},
        form="dense",
        return_weights=True,
    )
    expected = torch.zeros(count, size)
    for o in range(count):
        for t in range(kernel):
            p = o * stride + t * dilation - low
            if not 0 <= p < size and border in ("zeros", "renormalise"):
                continue
            if border == "replicate":
                p = min(max(p, 0), size - 1)
            elif border == "circular":
                p %= size
            elif border == "reflect":
                while not 0 <= p < size:
                    p = 0 if size == 1 else (-p if p < 0 else 2 * (size - 1) - p)
            expected[o, p] += taps[0, t]
    torch.testing.assert_close(w[0, 0], expected)
