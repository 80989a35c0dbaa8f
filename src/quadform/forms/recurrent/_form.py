"""The recurrent form: which mixers stream, and with which state."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra import (
    Alibi,
    All,
    And,
    Causal,
    Edges,
    Global,
    Graph,
    Hybrid,
    Kernel,
    Operands,
    Or,
    Softmax,
    TopK,
    Transposed,
    Uniform,
    Via,
    Weights,
    Window,
)
from quadform.forms._band import banded
from quadform.forms._call import Call
from quadform.forms._form import Cost
from quadform.forms.recurrent._chunk import chunk_layout, chunk_of
from quadform.forms.recurrent._hybrid import far_sums, hybrid
from quadform.forms.recurrent._kernel import CHUNK, Sums, causal_prefix, empty_sums, reduce_and_read
from quadform.forms.recurrent._state import State
from quadform.forms.recurrent._tail import append, first, last, named, run_tail, senders_of, sink_call, with_senders


class Recurrent:
    """A state that is carried from token to token: sums (S, z), a ring of senders, a growing cache, or ring and sums."""

    name = "recurrent"

    def refusal(self, call: Call) -> str | None:
        edges, weights = call.edges, call.weights
        streaming = call.state is not None or call.return_state
        if call.return_weights or call.dropout_p:
            return "the weights of single pairs are not kept here, so they can be neither returned nor dropped"
        if call.given_positions:
            return "the state counts positions itself, so they cannot be given"
        if isinstance(weights, Via):
            return "a causal projection is ill-defined: each extra node already mixes the whole sequence, its future included"
        for part in _parts(edges):
            if isinstance(part, TopK):
                return "the k best senders of the whole sequence are known only at its end"
            if isinstance(part, Graph):
                return "the nodes of a graph have no order to walk along"
        if len(call.layout.grid) > 1:
            return f"a stream has one dimension, and the grid has {len(call.layout.grid)}"
        if edges == All() and isinstance(weights, Kernel | Hybrid):
            if streaming:
                return "every query reads every key, so no state can be carried on before the last key has come"
            return _refuse_hybrid(weights) if isinstance(weights, Hybrid) else None
        if not edges.is_causal:
            return f"{edges} is not causal: a receiver would need senders that come after it"
        if isinstance(weights, Uniform) and weights.aggregate == "symmetric":
            return "the degree of a sender counts receivers that come after it"
        if isinstance(weights, Hybrid):
            if edges != Causal():
                return f"the sums of the far part reach all of the past, and {edges} does not"
            return _refuse_hybrid(weights)
        return None

    def cost(self, call: Call) -> Cost:
        n, m, size = call.layout.queries, call.layout.keys, call.v.element_size()
        rows, width = call.v.shape[0] * call.heads, call.v.shape[-1]
        features = _features(call)
        both = call.head_dim + width
        moved = 4.0 * size * rows * max(n, m) * both
        if features is not None:
            kept = 4 * call.v.shape[0] * call.v.shape[1] * features * (width + 1)
            inside = 0 if call.edges == All() else CHUNK
            flops = 2.0 * rows * max(n, m) * (2 * features * width + inside * (features + width))
            if isinstance(call.weights, Hybrid):
                left, right = call.weights.near.band
                inside = (left or 0) + (right or 0) + CHUNK
                flops += 2.0 * rows * n * inside * both
                kept += size * call.v.shape[0] * call.v.shape[1] * (left or 0) * both
            return Cost(
                flops, moved + 4.0 * rows * features * width * max(n, m) / CHUNK, kept, 12.0 * (n // CHUNK + 1), 0.5
            )
        limit = _limit(call.edges)
        keys = m if limit is None else min(limit + CHUNK, m)
        kept = size * call.v.shape[0] * call.v.shape[1] * (m if limit is None else limit) * both
        pairs = rows * n * (keys / 2 if limit is None else keys)
        return Cost(2.0 * pairs * both, moved, int(kept), 10.0 * (n // 64 + 1), 0.4)

    def run(self, call: Call) -> tuple[Tensor, Any]:
        mixer = f"{call.weights} on {call.edges}"
        _check_state(call, mixer)
        streaming = call.state is not None or call.return_state
        if isinstance(call.weights, Hybrid):
            y, state = _stream_hybrid(call, mixer) if streaming else (_once(call, _hybrid_once), None)
        elif _is_sum(call):
            y, state = _stream_sums(call, mixer) if streaming else (_once(call, _sums_once), None)
        elif streaming:
            y, state = run_tail(call, mixer, _limit(call.edges))
        else:
            operands = call.operands()
            edges = call.edges.resolve(operands, call.weights) if call.edges.content else call.edges
            y, state = banded(operands, edges, call.weights), None
        return y.to(call.v.dtype), state


def _parts(edges: Edges) -> list[Edges]:
    if isinstance(edges, And | Or):
        return _parts(edges.left) + _parts(edges.right)
    return _parts(edges.inner) if isinstance(edges, Transposed) else [edges]


def _refuse_hybrid(weights: Hybrid) -> str | None:
    for part in _parts(weights.near):
        if isinstance(part, Window) and part.dilation > 1:
            return "a dilated near window leaves gaps, whose keys a ring cannot pass on to the far sums in order"
    left, right = weights.near.band
    if left is None or right is None:
        return f"the near edges {weights.near} are not a bounded window"
    return None


def _limit(edges: Edges) -> int | None:
    """How many senders a ring must keep for causal edges; None where all are needed."""
    left, _ = edges.band
    if left is None or edges.content or any(isinstance(part, Global) for part in _parts(edges)):
        return None
    return left


def _is_sum(call: Call) -> bool:
    """Whether the state is a sum over senders."""
    weights = call.weights
    if isinstance(weights, Softmax):
        return call.edges == Causal() and not weights.content and isinstance(weights.bias, Alibi)
    if isinstance(weights, Uniform):
        return call.edges == Causal()
    return isinstance(weights, Kernel) and call.edges in (Causal(), All())


def _features(call: Call) -> int | None:
    if isinstance(call.weights, Hybrid):
        return call.weights.far.phi.features(call.head_dim)
    if not _is_sum(call):
        return None
    return call.weights.phi.features(call.head_dim) if isinstance(call.weights, Kernel) else 1


def _check_state(call: Call, mixer: str) -> None:
    if call.state is None:
        return
    if not isinstance(call.state, State):
        raise ArgumentError("state", "what an earlier call returned", type(call.state).__name__)
    if call.state.mixer != mixer:
        raise ArgumentError("state", f"a state of {mixer}", f"one of {call.state.mixer}")
    if call.state.length.device != call.v.device:
        raise ArgumentError("state", f"a state on {call.v.device}", str(call.state.length.device))


def _once(call: Call, compute: Any) -> Tensor:
    """A whole sequence without a state; rows that stand differently are computed one by one."""
    operands = call.operands()
    if operands.layout.shift is not None or (call.edges == All() and isinstance(call.weights, Kernel)):
        return compute(operands, call.edges, call.weights)
    parts = []
    for b in range(operands.batch):
        row = operands.row(b)
        at = row.layout
        shift = int(at.q_pos[0, 0] - at.k_pos[0, 0]) if at.queries and at.keys else 0
        parts.append(
            compute(dataclasses.replace(row, layout=dataclasses.replace(at, shift=shift)), call.edges, call.weights)
        )
    return (
        torch.cat(parts)
        if parts
        else operands.v.new_zeros(0, operands.heads, operands.layout.queries, operands.v.shape[-1])
    )


def _ahead(operands: Operands) -> tuple[Operands, int]:
    """Without the receivers that stand before the first sender, and how many those are."""
    at = operands.layout
    early = min(max(-(at.shift or 0), 0), at.queries)
    return operands.block(slice(early, at.queries), slice(0, at.keys)), early


def _sums_once(operands: Operands, edges: Edges, weights: Weights) -> Tensor:
    q, k, gates, normalise = _features_of(operands, weights)
    at = operands.layout
    valid = True if at.k_valid is None else at.k_valid[:, None, :, None]
    k = torch.where(torch.as_tensor(valid, device=k.device), k, 0)
    if edges == All():
        return reduce_and_read(q, k, operands.v, normalise)
    if not at.keys:
        return F.pad(operands.v, (0, 0, 0, at.queries))
    whole, early = _ahead(dataclasses.replace(operands, q=q, k=k, tensors={}, dims={}))
    y, _ = causal_prefix(whole.require("q"), k, operands.v, gates, whole.layout, empty_sums(k, operands.v), normalise)
    return F.pad(y, (0, 0, early, 0))


def _hybrid_once(operands: Operands, edges: Edges, weights: Weights) -> Tensor:
    assert isinstance(weights, Hybrid)
    whole, early = _ahead(operands) if edges.is_causal else (operands, 0)
    return F.pad(hybrid(whole, edges, weights), (0, 0, early, 0))


def _features_of(
    operands: Operands, weights: Weights, exists: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None, bool]:
    """(phi(q), phi(k), log-gates (B, H, N, 1 or m) or None, whether rows are divided by their sum)."""
    at, v = operands.layout, operands.v
    if isinstance(weights, Kernel):
        q, k = weights.phi(operands.require("q")), weights.phi(operands.require("k"))
        gates: Tensor | None = None
        if weights.decay is not None:
            gates = operands.named("log_decay")
            gates = gates[..., None] if weights.decay == "scalar" else gates
            if at.k_valid is not None:
                gates = torch.where(at.k_valid[:, None, :, None], gates, 0)
            gates = gates.expand(v.shape[0], v.shape[1], -1, -1)
        return q, k, gates, weights.normalise
    lead = (v.shape[0], v.shape[1])
    q, k = v.new_ones(*lead, at.queries, 1), v.new_ones(*lead, at.keys, 1)
    if isinstance(weights, Uniform):
        return q, k, None, weights.aggregate == "mean"
    gates = -operands.named("slopes").view(1, -1, 1, 1).expand(*lead, at.keys, 1)
    if exists is not None:
        gates = torch.where(exists[:, None, :, None], gates, 0)
    return q, k, gates, True


def _stream_sums(call: Call, mixer: str) -> tuple[Tensor, State]:
    chunk = chunk_of(call, call.state)
    layout = chunk_layout(chunk, None)
    operands = dataclasses.replace(call, layout=layout).operands()
    q, k, gates, normalise = _features_of(operands, call.weights, chunk.exists)
    k = torch.where(chunk.valid[:, None, :, None], k, 0)
    before = empty_sums(k, operands.v) if call.state is None else _restore(call.state, call.heads)
    bare = dataclasses.replace(operands, tensors={}, dims={})
    y, after = causal_prefix(q, k, operands.v, gates, bare.layout, before, normalise)
    shared = gates is None or call.groups == 1
    return y, State("kernel", mixer, chunk.length, _store(after, call.groups if shared else 1))


def _stream_hybrid(call: Call, mixer: str) -> tuple[Tensor, State]:
    weights = call.weights
    assert isinstance(weights, Hybrid)
    state: State | None = call.state
    chunk = chunk_of(call, state)
    new = senders_of(call, chunk)
    everything = append(state, "tail_", new)
    old = everything.valid[:, : everything.valid.shape[1] - new.valid.shape[1]]
    whole = with_senders(call, everything, chunk_layout(chunk, old))
    operands = whole.operands()
    limit = weights.near.band[0]
    assert limit is not None
    tensors = named("tail_", last(everything, limit, chunk.missing))
    far = weights.near.far_columns(whole.layout)
    extra = None
    if far is not None:
        sinks = first(state, new, chunk, far)
        tensors |= named("sink_", sinks)
        extra = sink_call(call, sinks, far, chunk).operands()
    phi_k = weights.far.phi(operands.require("k"))
    before = empty_sums(phi_k, operands.v) if state is None else _restore(state, call.heads)
    y = hybrid(operands, call.edges, weights, before, extra)
    leaving = operands.layout.k_pos < chunk.length[:, None] - limit
    moved = far_sums(weights.prepare(operands), weights, leaving)
    after = Sums(before.S + moved.S, before.z + moved.z)
    return y, State("hybrid", mixer, chunk.length, tensors | _store(after, call.groups))


def _restore(state: State, heads: int) -> Sums:
    """The sums of a state for all query heads."""
    S, z = state.tensors["S"], state.tensors["z"][..., None]
    groups = heads // S.shape[1] if S.shape[1] else 1
    return Sums(S.repeat_interleave(groups, 1), z.repeat_interleave(groups, 1))


def _store(sums: Sums, groups: int) -> dict[str, Tensor]:
    """The sums of one query head of each group, which all share a key-value head."""
    return {"S": sums.S[:, ::groups], "z": sums.z[:, ::groups, :, 0]}
