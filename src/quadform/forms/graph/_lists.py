"""Edge lists of a call: kept for the next call where a description fixes them, one for each head where content does."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from quadform.algebra import EdgeList, Edges, Graph, Layout
from quadform.algebra._layout import coordinates

KEPT_EDGES = 1 << 21  # of all lists that are kept: about 100 MB

_LISTS: OrderedDict[Any, EdgeList] = OrderedDict()
_GRAPHS: WeakKeyDictionary[Graph, dict[Any, EdgeList]] = WeakKeyDictionary()


def list_edges(edges: Edges, at: Layout) -> EdgeList:
    """The edges of a layout with Bp = 1; those of unpadded descriptions are kept, and a Graph's as long as it lives."""
    if at.padded or at.k_valid is not None or at.shift is None:
        return edges.edge_list(at)
    place = (at.queries, at.keys, at.grid, at.shift, at.q_pos.device)
    if isinstance(edges, Graph):
        lists = _GRAPHS.setdefault(edges, {})
        if place not in lists:
            lists[place] = edges.edge_list(at)
        return lists[place]
    key = (edges, *place)
    found = _LISTS.pop(key, None) or edges.edge_list(at)
    size = found.receiver.numel()
    if size <= KEPT_EDGES:
        _LISTS[key] = found
        while size + sum(x.receiver.numel() for x in tuple(_LISTS.values())[:-1]) > KEPT_EDGES:
            _LISTS.popitem(last=False)
    return found


def lists_by_head(edges: Edges, at: Layout, batch: int, heads: int, rows: int = 256) -> list[list[EdgeList]]:
    """The edges of every row of the batch and of every head; memory O(E + rows * B * H * m)."""
    found, counts = [], []
    for first in range(0, at.queries, rows):
        piece = at.block(slice(first, min(first + rows, at.queries)), slice(0, at.keys))
        count = edges.view(piece).count.expand(batch, heads, -1, -1)
        index = count.nonzero()
        counts.append(count[tuple(index.T)].long())
        found.append(index + torch.tensor([0, 0, first, 0], device=index.device))
    if not found:
        empty = torch.zeros(0, dtype=torch.int64, device=at.q_pos.device)
        return [[_edge_list(at.row(b), empty, empty, empty) for _ in range(heads)] for b in range(batch)]
    b, h, receiver, sender = torch.cat(found).T
    owner = b * heads + h
    order = torch.argsort(owner, stable=True)
    sizes = torch.bincount(owner, minlength=batch * heads).tolist()
    parts = [x[order].split(sizes) for x in (receiver, sender, torch.cat(counts))]
    lists = [_edge_list(at.row(i // heads), *part) for i, part in enumerate(zip(*parts, strict=True))]
    return [lists[i * heads : (i + 1) * heads] for i in range(batch)]


def _edge_list(at: Layout, receiver: Tensor, sender: Tensor, count: Tensor) -> EdgeList:
    q, k = coordinates(at.q_pos[0], at.grid), coordinates(at.k_pos[0], at.grid)
    offset = torch.stack([b[sender] - a[receiver] for a, b in zip(q, k, strict=True)], -1)
    return EdgeList(receiver, sender, offset, at.queries, at.keys, count)
