"""Mixers whose state is a sum over senders: kernels, equal weights, and scores that decay with the distance."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Alibi, All, Causal, Edges, Hybrid, Kernel, Operands, Softmax, Uniform, Weights
from quadform.forms._call import Call
from quadform.forms.recurrent._centre import recentred
from quadform.forms.recurrent._chunk import check_batch, chunk_layout, chunk_of
from quadform.forms.recurrent._kernel import Sums, causal_prefix, empty_sums, read, reduce_and_read
from quadform.forms.recurrent._pointwise import pointwise
from quadform.forms.recurrent._state import State


def is_sum(call: Call) -> bool:
    """Whether the state is a sum over senders."""
    weights = call.weights
    if isinstance(weights, Softmax):
        return call.edges == Causal() and not weights.content and isinstance(weights.bias, Alibi)
    if isinstance(weights, Uniform):
        return call.edges == Causal()
    return isinstance(weights, Kernel) and call.edges in (Causal(), All())


def sums_once(operands: Operands, edges: Edges, weights: Weights) -> Tensor:
    at = operands.layout
    phi = pointwise(weights.phi) if isinstance(weights, Kernel) and edges == Causal() else None
    if phi is not None and at.k_valid is None and at.shift == 0 and at.queries == at.keys > 1:
        q, k, gates, normalise = _features_of(operands, weights, mapped=False)
        return causal_prefix(q, k, operands.v, gates, 0, empty_sums(k, operands.v), normalise, phi=phi)[0]
    q, k, gates, normalise = _features_of(operands, weights)
    k = k if at.k_valid is None else torch.where(at.k_valid[:, None, :, None], k, 0)
    if edges == All():
        q = recentred(weights, q, k, None, None)
        return reduce_and_read(q, k, operands.v, normalise)
    if not at.keys:
        return F.pad(operands.v, (0, 0, 0, at.queries))
    whole, early = ahead(dataclasses.replace(operands, q=q, k=k, tensors={}, dims={}))
    shift = whole.layout.shift or 0
    q = recentred(weights, whole.require("q"), k, shift, None)
    y, _ = causal_prefix(q, k, operands.v, gates, shift, empty_sums(k, operands.v), normalise)
    return F.pad(y, (0, 0, early, 0))


def stream_sums(call: Call, mixer: str) -> tuple[Tensor, State]:
    if call.edges == All():
        return _stream_memory(call, mixer)
    chunk = chunk_of(call, call.state)
    layout = chunk_layout(chunk, None)
    operands = dataclasses.replace(call, layout=layout).operands()
    q, k, gates, normalise = _features_of(operands, call.weights, chunk.exists)
    k = torch.where(chunk.valid[:, None, :, None], k, 0)
    check_sums(call.state, k, operands.v)
    before = empty_sums(k, operands.v) if call.state is None else restore(call.state, call.heads)
    q = recentred(call.weights, q, k, 0, before.z)
    y, after = causal_prefix(q, k, operands.v, gates, 0, before, normalise)
    return y, State("kernel", mixer, chunk.length, store(after, sharing(call)))


def _stream_memory(call: Call, mixer: str) -> tuple[Tensor, State]:
    """All(): the first call reduces its senders to the sums, and every later one reads them with queries alone."""
    operands = call.operands()
    q, k, _, normalise = _features_of(operands, call.weights)
    at, batch = operands.layout, operands.batch
    k = k if at.k_valid is None else torch.where(at.k_valid[:, None, :, None], k, 0)
    check_batch(call.state, batch)
    check_sums(call.state, k, operands.v)
    sums = Sums(k.mT @ operands.v, k.sum(-2)[..., None]) if call.state is None else restore(call.state, call.heads)
    length = at.k_len.expand(batch).clone() if call.state is None else call.state.length
    q = recentred(call.weights, q, k[:, :, :0], None, sums.z)
    return read(q, sums, normalise), State("kernel", mixer, length, store(sums, sharing(call)))


def sharing(call: Call) -> int:
    """How many query heads share one state: all of a group, but 1 where gates or a map's tensors are each head's own."""
    weights = call.weights
    own = not isinstance(weights, Uniform)
    if isinstance(weights, Kernel | Hybrid):
        kernel = weights.far if isinstance(weights, Hybrid) else weights
        own = bool(kernel.specs())
    return 1 if own else call.groups


def _features_of(
    operands: Operands, weights: Weights, exists: Tensor | None = None, mapped: bool = True
) -> tuple[Tensor, Tensor, Tensor | None, bool]:
    """(phi(q), phi(k), log-gates (B, H, N, 1 or m) or None, whether rows are divided by their sum).

    Where they are not to be mapped, q and k stand for their features.
    """
    at, v = operands.layout, operands.v
    if isinstance(weights, Kernel):
        q, k = weights.features(operands) if mapped else (operands.require("q"), operands.require("k"))
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


def ahead(operands: Operands) -> tuple[Operands, int]:
    """Without the receivers that stand before the first sender, and how many those are."""
    at = operands.layout
    early = min(max(-(at.shift or 0), 0), at.queries)
    return operands.block(slice(early, at.queries), slice(0, at.keys)), early


def check_sums(state: State | None, k: Tensor, v: Tensor) -> None:
    """Errors: ArgumentError where a state's sums have other sizes than features k (B, H, N, m) and values v give."""
    if state is not None:
        like = empty_sums(k, v)
        state.require("S", like.S, 1)
        state.require("z", like.z[..., 0], 1)


def restore(state: State, heads: int) -> Sums:
    """The sums of a state for all query heads."""
    S, z = state.tensors["S"], state.tensors["z"][..., None]
    groups = heads // S.shape[1] if S.shape[1] else 1
    return Sums(S.repeat_interleave(groups, 1), z.repeat_interleave(groups, 1))


def store(sums: Sums, groups: int) -> dict[str, Tensor]:
    """The sums of one query head of each group, which all share a key-value head; copies that own their memory."""
    return {"S": sums.S[:, ::groups].clone(), "z": sums.z[:, ::groups, :, 0].clone()}
