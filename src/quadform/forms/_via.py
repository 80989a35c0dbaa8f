"""Two hops through extra nodes, composed of single hops that any form can evaluate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra import (
    All,
    Edges,
    Layout,
    Matrix,
    Operands,
    Softmax,
    Taps,
    Via,
    Weights,
    pooling_matrix,
    projection_matrix,
)

Evaluate = Callable[[Operands, Edges, Weights], Tensor]


def via(operands: Operands, weights: Via, evaluate: Evaluate) -> Tensor:
    """y of `weights` with each hop computed by `evaluate(operands, edges, weights)`."""
    q, k, v, at = operands.require("q"), operands.require("k"), operands.v, operands.layout
    nodes = weights.nodes
    exists: Tensor | None = None
    gather = _hop(at, nodes, at.keys, at.k_valid)
    if isinstance(weights.inner, Taps):
        by_key = projection_matrix(operands, "projection")
        by_value = (
            projection_matrix(operands, "projection_v") if operands.optional("projection_v") is not None else by_key
        )
        node_k = _apply(operands, by_key, k, gather, evaluate)
        node_v = _apply(operands, by_value, v, gather, evaluate)
    elif weights.pooling:
        average, some = pooling_matrix(operands, nodes)
        exists = some[:, 0]
        node_k = _apply(operands, average, k, gather, evaluate)
        if weights.core == "pinv":
            return _nystrom(operands, weights, average, node_k, exists, evaluate)
        node_v = _apply(operands, average, v, gather, evaluate)
    else:
        node_q = operands.named("node_q").expand(q.shape[1], -1, -1).expand(q.shape[0], -1, -1, -1)
        hop = dataclasses.replace(operands, q=node_q, layout=gather, tensors={}, dims={})
        given = operands.optional("node_k")
        node_v = evaluate(hop, All(), weights.inner)
        node_k = (
            evaluate(dataclasses.replace(hop, v=k), All(), weights.inner) if given is None else given.expand_as(node_q)
        )
    spread = _hop(at, at.queries, nodes, exists)
    hop = dataclasses.replace(operands, q=q, k=node_k, v=node_v, layout=spread, tensors={}, dims={})
    return evaluate(hop, All(), weights.outer)


def _hop(at: Layout, queries: int, keys: int, k_valid: Tensor | None) -> Layout:
    """The layout of one hop; All() reads no positions."""
    device = at.q_pos.device
    q_pos, k_pos = torch.arange(queries, device=device)[None], torch.arange(keys, device=device)[None]
    q_len, k_len = (torch.full((1,), n, dtype=torch.int64, device=device) for n in (queries, keys))
    return Layout(q_pos, k_pos, q_len, k_len, k_valid, (keys,), None, k_valid is not None)


def _apply(operands: Operands, matrix: Tensor, x: Tensor, layout: Layout, evaluate: Evaluate) -> Tensor:
    hop = dataclasses.replace(
        operands, q=None, k=None, v=x, layout=layout, tensors={"matrix": matrix}, dims={"matrix": ("B", "H", "Q", "K")}
    )
    return evaluate(hop, All(), Matrix())


def _nystrom(
    operands: Operands, weights: Via, average: Tensor, node_k: Tensor, exists: Tensor, evaluate: Evaluate
) -> Tensor:
    """softmax(q k~') pinv(softmax(q~ k~')) softmax(q~ k') v; self-attention only, since q is pooled like k."""
    q, k, at, nodes = operands.require("q"), operands.require("k"), operands.layout, weights.nodes
    if at.queries != at.keys:
        raise ArgumentError("q", f"{at.keys} queries, pooled as the keys are, where core is 'pinv'", str(at.queries))
    scale = weights.outer.scale if isinstance(weights.outer, Softmax) else None
    plain = Softmax(scale=scale)
    pooled_q = average @ torch.where(at.k_valid[:, None, :, None], q, 0) if at.k_valid is not None else average @ q
    bare = dataclasses.replace(operands, tensors={}, dims={})
    gathered = evaluate(
        dataclasses.replace(bare, q=pooled_q, k=k, layout=_hop(at, nodes, at.keys, at.k_valid)), All(), plain
    )
    eye = torch.eye(nodes, dtype=q.dtype, device=q.device).expand(*q.shape[:2], -1, -1)
    among = dataclasses.replace(bare, q=pooled_q, k=node_k, v=eye, layout=_hop(at, nodes, nodes, exists))
    core = evaluate(among, All(), plain) * exists[:, None, :, None]
    solved = _inverse(core) @ gathered
    out = dataclasses.replace(bare, k=node_k, v=solved, layout=_hop(at, at.queries, nodes, exists))
    return evaluate(out, All(), plain)


def _inverse(x: Tensor) -> Tensor:
    """The pseudoinverse of each matrix; NaN for one that is not finite (where torch would refuse the whole batch)."""
    finite = x.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    return torch.where(finite, torch.linalg.pinv(torch.where(finite, x, 0)), torch.nan)
