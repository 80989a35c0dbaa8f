"""The recurrent form: which mixers stream, and with which state."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra import All, Edges, Global, Hybrid, Kernel, Weights, Window
from quadform.forms._band import banded
from quadform.forms._call import Call
from quadform.forms._form import Cost
from quadform.forms.recurrent._hybrid_stream import hybrid_once, stream_hybrid
from quadform.forms.recurrent._kernel import CHUNK
from quadform.forms.recurrent._refusal import parts, refusal
from quadform.forms.recurrent._state import State
from quadform.forms.recurrent._sums import is_sum, sharing, stream_sums, sums_once
from quadform.forms.recurrent._tail import run_tail


class Recurrent:
    """A state that is carried from token to token: sums (S, z), a ring of senders, a growing cache, or ring and sums."""

    name = "recurrent"

    def refusal(self, call: Call) -> str | None:
        return refusal(call)

    def cost(self, call: Call) -> Cost:
        n, m, size = call.layout.queries, call.layout.keys, call.v.element_size()
        rows, width = call.v.shape[0] * call.heads, call.v.shape[-1]
        features = _features(call)
        both = call.head_dim + width
        moved = 4.0 * size * rows * max(n, m) * both
        if features is not None:
            kept = max(size, 4) * rows // sharing(call) * features * (width + 1)
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
        limit = _limit(call.edges, call.weights)
        keys = m if limit is None else min(limit + CHUNK, m)
        kept = size * call.v.shape[0] * call.v.shape[1] * (m if limit is None else limit) * both
        pairs = rows * n * (keys / 2 if limit is None else keys)
        return Cost(2.0 * pairs * both, moved, int(kept), 10.0 * (n // 64 + 1), 0.4)

    def run(self, call: Call) -> tuple[Tensor, Any]:
        mixer = str(call.weights) + " on " + str(call.edges)  # torch.compile cannot compare a format string
        _check_state(call, mixer)
        streaming = call.state is not None or call.return_state
        if isinstance(call.weights, Hybrid):
            y, state = stream_hybrid(call, mixer) if streaming else (_once(call, hybrid_once), None)
        elif is_sum(call):
            y, state = stream_sums(call, mixer) if streaming else (_once(call, sums_once), None)
        elif streaming:
            y, state = run_tail(call, mixer, _limit(call.edges, call.weights))
        else:
            operands = call.operands()
            edges = call.edges.resolve(operands, call.weights) if call.edges.content else call.edges
            y, state = banded(operands, edges, call.weights), None
        return y.to(call.v.dtype), state


def _limit(edges: Edges, weights: Weights) -> int | None:
    """How many senders a ring must keep for causal edges; None where all are needed.

    What fades from a sink to a receiver is every gate between them, so a kernel with decay and sinks keeps all senders.
    """
    left, _ = edges.band
    fading = isinstance(weights, Kernel) and weights.decay is not None
    for part in parts(edges):
        if isinstance(part, Global) or (fading and isinstance(part, Window) and part.sinks):
            return None
    return None if edges.content else left


def _features(call: Call) -> int | None:
    if isinstance(call.weights, Hybrid):
        return call.weights.far.phi.features(call.head_dim)
    if not is_sum(call):
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
