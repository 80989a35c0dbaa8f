"""Streams that keep their last senders as they are: a ring for a bounded reach, a growing cache otherwise, and sinks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra import Layout
from quadform.forms._band import banded
from quadform.forms._call import Call
from quadform.forms.recurrent._buffer import Place, Placed, extend, shareable
from quadform.forms.recurrent._chunk import Chunk, chunk_layout, chunk_of
from quadform.forms.recurrent._state import State

Named = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Kept:
    """Senders that a stream kept: named tensors with their axis of senders, which entries are senders at all, and where they
    stand in a buffer, if in one."""

    tensors: Named
    axes: dict[str, int]
    valid: Tensor
    place: Place | None = None


def senders_of(call: Call, chunk: Chunk) -> Kept:
    """k, v and the per-sender tensors of a call, all with B rows."""
    batch = call.v.shape[0]
    tensors: Named = {"v": call.v} if call.k is None else {"k": call.k, "v": call.v}
    axes = dict.fromkeys(tensors, 2)
    for name, x in call.tensors.items():
        names = call.dims[name]
        if "K" in names:
            tensors[name], axes[name] = x.expand(batch, *x.shape[1:]), names.index("K")
    return Kept(tensors, axes, chunk.valid)


def append(state: State | None, new: Kept, shared: bool) -> Kept:
    """The kept senders of a state followed by new ones, in a shared buffer if they may be."""
    if state is None or "tail_v" not in state.tensors:
        return new
    axes = new.axes
    old = {n: state.require(f"tail_{n}", x, axes[n]) for n, x in new.tensors.items()}
    if shared and shareable(old, new.tensors):
        place = extend(
            state.tensors, named("tail_", new), {f"tail_{n}": a for n, a in axes.items()} | {"tail_valid": 1}
        )
        return _placed(place, new.tensors, axes)
    joined = {n: torch.cat([old[n], x], axes[n]) for n, x in new.tensors.items()}
    return Kept(joined, axes, torch.cat([state.tensors["tail_valid"], new.valid], 1))


def _placed(place: Place, names: Named, axes: dict[str, int]) -> Kept:
    views = place.views()
    return Kept({n: views[f"tail_{n}"] for n in names}, axes, views["tail_valid"], place)


def last(kept: Kept, limit: int | None, missing: Tensor | None) -> Kept:
    """The last `limit` senders of each row (all of them for None); `missing` (B,) ones at the end do not exist.

    What is returned owns its memory, or stays in its buffer, which has twice as many places at most: a ring of 8 does not hold
    the million keys of the call that it was cut from.
    """
    count = kept.valid.shape[1]
    size = count if limit is None else min(limit, count)
    if kept.place is not None and missing is None:
        return _placed(kept.place.last(size), kept.tensors, kept.axes)
    if missing is None:
        tensors = {n: _copy(x.narrow(kept.axes[n], count - size, size)) for n, x in kept.tensors.items()}
        return Kept(tensors, kept.axes, _copy(kept.valid[:, count - size :]))
    index = torch.arange(count - size, count, device=missing.device) - missing[:, None]
    valid = kept.valid.gather(1, index.clamp(min=0)) & (index >= 0)
    return Kept({n: _pick(x, index.clamp(min=0), kept.axes[n]) for n, x in kept.tensors.items()}, kept.axes, valid)


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def first(state: State | None, new: Kept, chunk: Chunk, position: Tensor) -> Kept:
    """The senders at fixed positions (1, s) from the start: kept ones, and those that this chunk brings."""
    n = new.valid.shape[1]
    before = torch.zeros_like(chunk.length) if state is None else state.length
    start = chunk.position[:, :1] if n else before[:, None]
    index = position - start
    here = (index >= 0) & (index < n) & (position >= before[:, None])
    safe = index.clamp(0, max(n - 1, 0))
    had = state is not None and "sink_v" in state.tensors
    tensors = {}
    for name, x in new.tensors.items():
        found = _pick(x, safe, new.axes[name]) if n else _blank(x, new.axes[name], position.shape[1])
        shape = [1] * x.dim()
        shape[0], shape[new.axes[name]] = here.shape
        old = state.require(f"sink_{name}", found) if had and state is not None else torch.zeros_like(found)
        tensors[name] = torch.where(here.view(shape), found, old)
    found_valid = new.valid.gather(1, safe) & here if n else torch.zeros_like(here)
    old_valid = state.tensors["sink_valid"] if had and state is not None else torch.zeros_like(here)
    return Kept(tensors, new.axes, torch.where(here, found_valid, old_valid))


def _pick(x: Tensor, index: Tensor, axis: int) -> Tensor:
    shape = [1] * x.dim()
    shape[0], shape[axis] = index.shape
    return x.gather(axis, index.view(shape).expand(*x.shape[:axis], index.shape[1], *x.shape[axis + 1 :]))


def _blank(x: Tensor, axis: int, size: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] = size
    return x.new_zeros(shape)


def with_senders(call: Call, kept: Kept, layout: Layout) -> Call:
    """The call with these senders in the place of its own."""
    tensors = {n: kept.tensors.get(n, x) for n, x in call.tensors.items()}
    return dataclasses.replace(call, k=kept.tensors.get("k"), v=kept.tensors["v"], tensors=tensors, layout=layout)


def named(prefix: str, kept: Kept) -> Named:
    """The entries of a state that hold these senders."""
    entries = {prefix + n: x for n, x in kept.tensors.items()} | {f"{prefix}valid": kept.valid}
    return entries if kept.place is None else Placed(entries, kept.place)


def sink_call(call: Call, kept: Kept, position: Tensor, chunk: Chunk) -> Call:
    """The chunk's receivers with the senders at fixed positions."""
    layout = chunk_layout(chunk, None)
    layout = dataclasses.replace(layout, k_pos=position, k_valid=kept.valid, shift=None)
    return with_senders(call, kept, layout)


def continued(call: Call, limit: int | None) -> tuple[Chunk, Kept, Kept, Call]:
    """(positions of the new tokens, their senders, those behind the kept ones, the call with all of these as senders).

    A chunk that is longer than the `limit` senders that will be kept of it stays out of their buffer.
    """
    chunk = chunk_of(call, call.state)
    new = senders_of(call, chunk)
    everything = append(call.state, new, chunk.missing is None and (limit is None or new.valid.shape[1] <= limit))
    old = everything.valid[:, : everything.valid.shape[1] - new.valid.shape[1]]
    return chunk, new, everything, with_senders(call, everything, chunk_layout(chunk, old))


def run_tail(call: Call, mixer: str, limit: int | None) -> tuple[Tensor, State]:
    """One call of a stream that keeps senders: all receivers against what was kept and the chunk itself."""
    chunk, new, everything, whole = continued(call, limit)
    grown = limit is None and call.state is not None and chunk.missing is None  # then `append` has made a copy
    tensors = named("tail_", everything if grown else last(everything, limit, chunk.missing))
    operands = whole.operands()
    edges = call.edges.resolve(operands, call.weights) if call.edges.content else call.edges
    extra = None
    far = None if limit is None else edges.far_columns(whole.layout)
    if far is not None:
        sinks = first(call.state, new, chunk, far)
        tensors |= named("sink_", sinks)
        extra = sink_call(call, sinks, far, chunk).operands()
    y = banded(operands, edges, call.weights, extra=extra)
    return y.to(call.v.dtype), State("tail", mixer, chunk.length, tensors)
