"""Hybrid weights as a stream: a ring for the band, sinks, and sums over what has left both."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Edges, Hybrid, Operands, Weights
from quadform.forms._call import Call
from quadform.forms.recurrent._hybrid import far_sums, hybrid
from quadform.forms.recurrent._kernel import Sums, empty_sums
from quadform.forms.recurrent._state import State
from quadform.forms.recurrent._sums import ahead, check_sums, restore, sharing, store
from quadform.forms.recurrent._tail import continued, first, last, named, sink_call


def hybrid_once(operands: Operands, edges: Edges, weights: Weights) -> Tensor:
    assert isinstance(weights, Hybrid)
    whole, early = ahead(operands) if edges.is_causal else (operands, 0)
    return F.pad(hybrid(weights.prepare(whole), edges, weights), (0, 0, early, 0))


def stream_hybrid(call: Call, mixer: str) -> tuple[Tensor, State]:
    weights = call.weights
    assert isinstance(weights, Hybrid)
    state: State | None = call.state
    limit = weights.near.band[0]
    assert limit is not None
    chunk, new, everything, whole = continued(call, limit)
    prepared = weights.prepare(whole.operands())
    tensors = named("tail_", last(everything, limit, chunk.missing))
    far = weights.near.far_columns(whole.layout)
    extra = None
    if far is not None:
        sinks = first(state, new, chunk, far)
        tensors |= named("sink_", sinks)
        extra = weights.prepare(sink_call(call, sinks, far, chunk).operands())
    phi_k = prepared.named("far_k")
    check_sums(state, phi_k, prepared.v)
    before = empty_sums(phi_k, prepared.v) if state is None else restore(state, call.heads)
    y = hybrid(prepared, call.edges, weights, before, extra)
    beyond = prepared.block(slice(0, 0), slice(0, max(prepared.layout.keys - limit, 0)))
    moved = far_sums(beyond, weights, beyond.layout.k_pos < chunk.length[:, None] - limit)
    after = Sums(before.S + moved.S, before.z + moved.z)
    return y, State("hybrid", mixer, chunk.length, tensors | store(after, sharing(call)))
