"""The graph form: every mixer, edge by edge."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Causal, EdgeList, Edges, Graph, Layout, Operands, Stencil, TopK, Transposed, Via, Weights
from quadform.forms._call import Call
from quadform.forms._form import Cost
from quadform.forms._via import via
from quadform.forms.graph._view import EdgeView, edge_weights

_LISTS: OrderedDict[Any, EdgeList] = OrderedDict()
_GRAPHS: WeakKeyDictionary[Graph, dict[Any, EdgeList]] = WeakKeyDictionary()
_KEPT = 16


class MessagePassing:
    """Scores at the edges, a softmax over the edges into each receiver, and weighted sums; nothing of size E x D."""

    name = "graph"

    def refusal(self, call: Call) -> str | None:
        if call.state is not None or call.return_state:
            return "the graph form keeps no state; ask for form='recurrent'"
        if call.return_weights:
            return "weights lie on edges here and not in a matrix; ask for form='dense'"
        if call.dropout_p and isinstance(call.weights, Via):
            return "two hops have no single weight to drop"
        return None

    def cost(self, call: Call) -> Cost:
        edges = _count(call.edges, call.layout.queries, call.layout.keys)
        if isinstance(call.weights, Via):
            edges = call.weights.nodes * (call.layout.queries + call.layout.keys)
        work = call.v.shape[0] * call.heads * edges * (call.head_dim + call.v.shape[-1])
        return Cost(2.0 * work, 2.0 * 4 * work, None, 12, 0.1)

    def run(self, call: Call) -> tuple[Tensor, Any]:
        operands = call.operands()
        if isinstance(call.weights, Via):
            return via(operands, call.weights, evaluate).to(call.v.dtype), None
        if call.edges.content:
            y = _each_head(operands, call.resolved().edges, call.weights, call.dropout_p)
        else:
            y = evaluate(operands, call.edges, call.weights, call.dropout_p)
        return y.to(call.v.dtype), None


def evaluate(operands: Operands, edges: Edges, weights: Weights, dropout_p: float = 0.0) -> Tensor:
    """y of operands with H heads; rows of the batch that stand differently are computed one by one."""
    if operands.layout.rows == 1:
        return _pass(operands, _edge_list(edges, operands.layout), weights, dropout_p)
    rows = [operands.row(b) for b in range(operands.batch)]
    parts = [_pass(row, edges.edge_list(row.layout), weights, dropout_p) for row in rows]
    return (
        torch.cat(parts)
        if parts
        else operands.v.new_zeros(0, operands.heads, operands.layout.queries, operands.v.shape[-1])
    )


def _pass(operands: Operands, edges: EdgeList, weights: Weights, dropout_p: float) -> Tensor:
    view = EdgeView(edges, operands.layout)
    prepared = weights.prepare(operands)
    w = edge_weights(weights.log, weights.normalised, weights.scores(view, prepared), view)
    return view.combine(F.dropout(w, dropout_p) if dropout_p else w, operands.v)


def _each_head(operands: Operands, edges: Edges, weights: Weights, dropout_p: float) -> Tensor:
    """Edges of their own for each row of the batch and each head."""
    at = operands.layout
    count = edges.view(at).count
    count = count.expand(operands.batch, operands.heads, at.queries, at.keys)
    rows = []
    for b in range(operands.batch):
        row = operands.row(b)
        heads = [
            _pass(row.head(h), _from_relation(count[b, h], row.layout), weights, dropout_p)
            for h in range(operands.heads)
        ]
        rows.append(torch.cat(heads, 1) if heads else row.v.new_zeros(1, 0, at.queries, row.v.shape[-1]))
    return torch.cat(rows) if rows else operands.v.new_zeros(0, operands.heads, at.queries, operands.v.shape[-1])


class _Given(Edges):
    """Edges whose relation has been computed."""

    def __init__(self, count: Tensor) -> None:
        self.count = count

    def relation(self, at: Layout) -> Tensor:
        first, left = at.origin
        return self.count[None, None, first : first + at.queries, left : left + at.keys]


def _from_relation(count: Tensor, at: Layout) -> EdgeList:
    return _Given(count).edge_list(dataclasses.replace(at, k_valid=None))


def _edge_list(edges: Edges, at: Layout) -> EdgeList:
    """The edge list of a layout whose rows stand alike; those of unpadded descriptions are kept for the next call."""
    if at.padded or at.k_valid is not None or at.shift is None:
        return edges.edge_list(at)
    key: tuple[Any, ...] = (at.queries, at.keys, at.grid, at.shift, at.q_pos.device)
    if isinstance(edges, Graph):
        lists = _GRAPHS.setdefault(edges, {})
        if key not in lists:
            lists[key] = edges.edge_list(at)
        return lists[key]
    key = (edges, *key)
    if key not in _LISTS:
        _LISTS[key] = edges.edge_list(at)
        while len(_LISTS) > _KEPT:
            _LISTS.popitem(last=False)
    _LISTS.move_to_end(key)
    return _LISTS[key]


def _count(edges: Edges, n: int, m: int) -> float:
    """About how many edges there are, without listing them."""
    inner = edges.inner if isinstance(edges, Transposed) else edges
    if isinstance(inner, Graph):
        return inner.num_edges
    if isinstance(inner, Stencil):
        return max(n, m) * inner.taps
    left, right = edges.band
    if left is not None and right is not None:
        return float(n) * min(left + right + 1, m)
    if isinstance(edges, TopK):
        return float(n) * m + n * edges.k
    return n * m / 2 if edges == Causal() else float(n) * m
