"""The convolution form: which mixers slide, and how each is computed."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import (
    All,
    Dynamic,
    Hybrid,
    Kernel,
    Operands,
    Softmax,
    Stencil,
    Taps,
    Transposed,
    Uniform,
    Via,
    Weights,
)
from quadform.forms._band import banded, is_banded
from quadform.forms._call import Call
from quadform.forms._evaluate import evaluate
from quadform.forms._form import Cost
from quadform.forms._via import _hop
from quadform.forms.convolution._frame import Frame, offsets_frame, stencil_frame
from quadform.forms.convolution._taps import dynamic, fixed, mean_taps, softmax_taps, transposed


class Convolution:
    """Taps by (transposed) convolution, position-only weights by a normalised convolution, windows in sliding blocks."""

    name = "convolution"

    def refusal(self, call: Call) -> str | None:
        edges, weights = call.edges, call.weights
        if call.state is not None or call.return_state:
            return "a convolution keeps no state; ask for form='recurrent'"
        if call.return_weights or call.dropout_p:
            return "the weights of single pairs are never formed here, so they can be neither returned nor dropped"
        if isinstance(weights, Via):
            return _refuse_via(weights)
        inner = edges.inner if isinstance(edges, Transposed) else edges
        if isinstance(inner, Stencil):
            return _refuse_stencil(edges, inner, weights)
        if is_fixed(weights):
            if call.given_positions:
                return "positions of the caller's own are not a regular grid to slide along"
            if offsets_frame(edges, call.layout) is not None and len(call.layout.grid) <= 3:
                return None
        if isinstance(weights, Hybrid):
            return "the far part reaches every position; the recurrent form carries it in a state"
        if isinstance(weights, Kernel):
            return "a kernel's features do not slide; the recurrent form carries them in a state"
        if is_banded(edges):
            return None
        if is_fixed(weights):
            return f"{edges} is neither the same around every receiver nor a bounded window"
        return "its weights depend on content and its edges are not a bounded window: it is not translation-invariant"

    def cost(self, call: Call) -> Cost:
        n, width = call.layout.queries, call.v.shape[-1]
        channels = call.v.shape[0] * call.heads * width
        size = call.v.element_size()
        edges = call.edges.inner if isinstance(call.edges, Transposed) else call.edges
        moved = 4.0 * size * channels * max(n, call.layout.keys)
        if isinstance(edges, Stencil):
            steps = edges.taps if call.weights.log else 4
            return Cost(
                2.0 * channels * n * edges.taps, moved * (edges.taps if call.weights.log else 1), None, steps, 0.2
            )
        if isinstance(call.weights, Via):
            pairs = call.v.shape[0] * call.heads * n * call.weights.nodes
            return Cost(2.0 * pairs * (call.head_dim + width), moved, None, 6)
        if is_fixed(call.weights):
            frame = offsets_frame(call.edges, call.layout)
            taps = 1 if frame is None else torch.Size(frame.kernel).numel()
            return Cost(2.0 * channels * n * taps, moved, None, 8, 0.1)
        left, right = call.edges.band
        block = min(max(((left or 0) + (right or 0) + 1) // 2, 64), 512)
        keys = min((left or 0) + (right or 0) + block, call.layout.keys)
        pairs = call.v.shape[0] * call.heads * n * keys
        return Cost(2.0 * pairs * (call.head_dim + width), moved, None, 3.0 * (n // block + 1), 0.6)

    def run(self, call: Call) -> tuple[Tensor, Any]:
        operands, edges, weights = call.operands(), call.edges, call.weights
        inner = edges.inner if isinstance(edges, Transposed) else edges
        if isinstance(weights, Via):
            y = _pooled(operands, weights)
        elif not call.v.numel():
            y = evaluate(operands, edges, weights)  # torch's convolutions lose the other sizes of an empty tensor
        elif isinstance(inner, Stencil):
            y = _row_by_row(operands, inner, weights) if call.layout.padded else _on_grid(operands, weights)
        else:
            frame = offsets_frame(edges, call.layout) if is_fixed(weights) else None
            if frame is not None and len(frame.grid) <= 3 and not call.given_positions:
                y = _slide(operands, weights, frame, call.layout.k_valid)
            else:
                y = banded(operands, edges, weights)
        return y.to(call.v.dtype), None


def is_fixed(weights: Weights) -> bool:
    """Whether the weights depend on the offset alone."""
    if isinstance(weights, Uniform):
        return weights.aggregate in ("sum", "mean")
    return isinstance(weights, Softmax) and not weights.content and weights.bias is not None and weights.bias.relative


def _refuse_via(weights: Via) -> str | None:
    if weights.pooling and weights.core is None:
        return None
    if weights.core is not None:
        return "Nystrom's inverse joins all nodes; only the pooling of a two-hop mixer is a convolution"
    return f"the inner hop {weights.inner} reaches each node from everywhere; only pooling slides"


def _refuse_stencil(edges: Any, stencil: Stencil, weights: Weights) -> str | None:
    if stencil.dims > 3:
        return f"torch convolves in at most 3 dimensions, and {stencil} has {stencil.dims}"
    if isinstance(weights, Taps):
        return None
    if isinstance(edges, Transposed):
        return f"only Taps slide along a transposed stencil, and {weights} is normalised over its receivers"
    if isinstance(weights, Dynamic):
        return None
    if is_fixed(weights):
        if set(_tuple(stencil.stride)) != {1} and isinstance(weights, Softmax):
            return "with a stride the offset of a tap differs from receiver to receiver, and so does its score"
        return None
    return f"{weights} depends on content, which a stencil's taps do not see"


def _tuple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


def _slide(operands: Operands, weights: Weights, frame: Frame, valid: Tensor | None) -> Tensor:
    """Position-only weights and taps on one frame."""
    v = operands.v
    if isinstance(weights, Taps):
        return fixed(v, _heads(operands.named("taps"), v), frame)
    if isinstance(weights, Dynamic):
        logits = operands.named("logits")
        return dynamic(v, logits.expand(v.shape[0], v.shape[1], *logits.shape[2:]), valid, frame)
    if isinstance(weights, Uniform):
        if weights.aggregate == "mean":
            return mean_taps(v, valid, frame)
        ones = v.new_ones(v.shape[1], torch.Size(frame.kernel).numel())
        return fixed(v, ones if frame.taps is None else ones * frame.taps, frame)
    assert isinstance(weights, Softmax) and weights.bias is not None
    offsets = frame.offsets(v.device) - (_shift(operands) if frame.border == "renormalise" else 0)
    scores = weights.bias.at(offsets[None, None], operands)[0]
    return softmax_taps(v, _heads(scores, v), valid, frame)


def _shift(operands: Operands) -> Tensor | int:
    """Frames of pairs count offsets from the receiver's index; scores count them from its position."""
    at = operands.layout
    return 0 if isinstance(operands.edges, Stencil) or len(at.grid) > 1 else (at.shift or 0)


def _heads(x: Tensor, v: Tensor) -> Tensor:
    return x.expand(v.shape[1], *x.shape[1:])


def _on_grid(operands: Operands, weights: Weights) -> Tensor:
    edges, at = operands.edges, operands.layout
    if isinstance(edges, Transposed):
        stencil = edges.inner
        assert isinstance(stencil, Stencil)
        frame = stencil_frame(stencil, stencil.senders_grid(at.grid, at.queries))
        return transposed(operands.v, _heads(operands.named("taps"), operands.v), frame)
    assert isinstance(edges, Stencil)
    return _slide(operands, weights, stencil_frame(edges, at.grid), at.k_valid)


def _row_by_row(operands: Operands, stencil: Stencil, weights: Weights) -> Tensor:
    """Each row of the batch cut to its own sequence, so that padding is the shorter sequence by construction."""
    at, rows = operands.layout, []
    for b in range(operands.batch):
        one = operands.row(b)
        here = one.layout
        first = -int(here.k_pos[0, 0]) if at.keys else 0
        begin = -int(here.q_pos[0, 0]) if at.queries else 0
        length, count = int(here.k_len[0]), int(here.q_len[0])
        if not count:
            rows.append(F.pad(one.v[:, :, :0], (0, 0, 0, at.queries)))
            continue
        cut = one.block(slice(begin, begin + count), slice(first, first + length))
        cut = dataclasses.replace(cut, layout=dataclasses.replace(cut.layout, grid=(length,), padded=False))
        y = _on_grid(cut, weights)
        rows.append(F.pad(y, (0, 0, begin, at.queries - begin - count)))
    return torch.cat(rows) if rows else operands.v.new_zeros(0, operands.heads, at.queries, operands.v.shape[-1])


def _pooled(operands: Operands, weights: Via) -> Tensor:
    """Adaptive average pooling of keys and values, then softmax over the pooled nodes."""
    at, k = operands.layout, operands.require("k")
    both = torch.cat([k, operands.v], -1)
    node, exists = [], []
    for b in range(operands.batch if at.padded or at.k_valid is not None else 1):
        one = at.row(b)
        rows = both[b : b + 1] if at.padded or at.k_valid is not None else both
        first, length = (-int(one.k_pos[0, 0]) if at.keys else 0), int(one.k_len[0])
        kept = torch.ones(1, at.keys, dtype=both.dtype, device=both.device)
        kept = kept if one.k_valid is None else one.k_valid.to(both.dtype)
        span = slice(first, first + length)
        share = _pool(kept[:, None, span, None], weights.nodes)
        pooled = _pool((rows * kept[:, None, :, None])[:, :, span], weights.nodes)
        some = share > 0
        node.append(torch.where(some, pooled / torch.where(some, share, 1), 0))
        exists.append(some[:, 0, :, 0])
    pooled = torch.cat(node) if node else both.new_zeros(0, operands.heads, weights.nodes, both.shape[-1])
    valid = torch.cat(exists) if exists else torch.ones(1, weights.nodes, dtype=torch.bool, device=both.device)
    node_k, node_v = pooled.split([k.shape[-1], operands.v.shape[-1]], -1)
    hop = dataclasses.replace(
        operands, k=node_k, v=node_v, layout=_hop(at, at.queries, weights.nodes, valid), tensors={}, dims={}
    )
    return evaluate(hop, All(), weights.outer)


def _pool(x: Tensor, nodes: int) -> Tensor:
    """(A, H, N, D) to (A, H, nodes, D)."""
    a, h, n, d = x.shape
    if 0 in (a, h, n, d):
        return x.sum(2, keepdim=True).expand(a, h, nodes, d)
    return F.adaptive_avg_pool1d(x.movedim(3, 2).reshape(a * h, d, n), nodes).reshape(a, h, d, nodes).movedim(2, 3)
