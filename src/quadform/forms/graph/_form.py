"""The graph form: every mixer, edge by edge."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Causal, EdgeList, Edges, Graph, Operands, Stencil, TopK, Transposed, Via, Weights
from quadform.forms._call import Call
from quadform.forms._form import Cost, score_width
from quadform.forms._via import via
from quadform.forms.graph._lists import list_edges, lists_by_head
from quadform.forms.graph._view import EdgeView, edge_weights


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
        work = call.v.shape[0] * call.heads * edges * (score_width(call) + call.v.shape[-1])
        return Cost(2.0 * work, 2.0 * 4 * work, None, 12, 0.1)

    def run(self, call: Call) -> tuple[Tensor, Any]:
        resolved = call.resolved()
        operands = resolved.operands()
        if isinstance(call.weights, Via):
            return via(operands, call.weights, evaluate).to(call.v.dtype), None
        compute = _each_head if call.edges.content else evaluate
        return compute(operands, resolved.edges, call.weights, call.dropout_p).to(call.v.dtype), None


def evaluate(operands: Operands, edges: Edges, weights: Weights, dropout_p: float = 0.0) -> Tensor:
    """y of operands with H heads; rows of the batch that stand differently are computed one by one."""
    prepared = weights.prepare(operands)
    if operands.layout.rows == 1:
        return _pass(prepared, list_edges(edges, operands.layout), weights, dropout_p)
    rows = prepared.parts("B")
    parts = [_pass(row, edges.edge_list(row.layout), weights, dropout_p) for row in rows]
    return torch.cat(parts) if parts else _nothing(operands)


def _pass(prepared: Operands, edges: EdgeList, weights: Weights, dropout_p: float) -> Tensor:
    """y of operands that the weights have prepared, whose rows and heads share the edges."""
    view = EdgeView(edges, prepared.layout)
    w = edge_weights(weights.log, weights.normalised, weights.scores(view, prepared), view)
    w = w.expand(prepared.batch, prepared.heads, -1)
    return view.combine(F.dropout(w, dropout_p) if dropout_p else w, prepared.v)


def _each_head(operands: Operands, edges: Edges, weights: Weights, dropout_p: float) -> Tensor:
    """y of resolved edges: each row of the batch and each head has its own."""
    lists = lists_by_head(edges, operands.layout, operands.batch, operands.heads)
    parts = [
        _pass(head, its, weights, dropout_p)
        for row, of_heads in zip(weights.prepare(operands).parts("B"), lists, strict=True)
        for head, its in zip(row.parts("H"), of_heads, strict=True)
    ]
    return torch.cat(parts, 1).unflatten(1, (operands.batch, -1))[0] if parts else _nothing(operands)


def _nothing(operands: Operands) -> Tensor:
    return operands.v.new_zeros(operands.batch, operands.heads, operands.layout.queries, operands.v.shape[-1])


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
