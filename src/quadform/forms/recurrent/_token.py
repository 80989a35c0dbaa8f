"""What the short ways of one token share: its place among the kept senders, and checks of what the call passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra import TensorSpec
from quadform.forms.recurrent._buffer import Placed, extend, shareable
from quadform.forms.recurrent._state import State

AXES = {"tail_k": 2, "tail_v": 2, "tail_valid": 1}


def wide(x: Tensor) -> Tensor:
    """float32 for half precision, x itself elsewhere."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@dataclass(frozen=True, eq=False)
class Senders:
    """Keys (B, Hk, R, D) and values of sinks, kept senders and the token itself, and which are senders at all (B, R).

    Attributes:
        leaving: those that the ring gives up, by the names of AXES; the first of them stood at `position` (B, 1).
        after: the entries of the next state.
    """

    keys: Tensor
    values: Tensor
    valid: Tensor
    leaving: dict[str, Tensor]
    position: Tensor
    after: dict[str, Tensor]


def next_senders(k: Tensor, v: Tensor, state: State, limit: int | None, sinks: int) -> Senders | None:
    """A token's senders, of which the last `limit` are kept, and the sinks; None where the token does not fit the state."""
    tensors = state.tensors
    new = {"tail_k": k, "tail_v": v, "tail_valid": torch.ones(k.shape[0], 1, dtype=torch.bool, device=k.device)}
    if not all(name in tensors and _follows(tensors[name], x) for name, x in new.items()):
        return None
    if sinks and not _has_sinks(tensors, new, sinks):
        return None
    if limit != 0 and shareable(tensors, new):
        place = extend(tensors, new, AXES)
        everything = place.views()
        size = place.end - place.start
        kept = place if limit is None else place.last(min(limit, size))
        start = size - (kept.end - kept.start)
        after: dict[str, Tensor] = Placed(everything if kept is place else kept.views(), kept)
    else:
        everything = {name: torch.cat([tensors[name], x], AXES[name]) for name, x in new.items()}
        size = everything["tail_valid"].shape[1]
        start = 0 if limit is None else max(size - limit, 0)
        cut = {name: x.narrow(AXES[name], start, size - start) for name, x in everything.items()}
        after = (
            {name: x.clone(memory_format=torch.contiguous_format) for name, x in cut.items()} if start else everything
        )
    leaving = {name: x.narrow(AXES[name], 0, start) for name, x in everything.items()}
    position = state.length[:, None] + 1 - size
    senders = [everything[name] for name in AXES]
    if limit is not None and sinks:
        first, visible = _sinks(new, state, limit)
        after = after | first
        old = (tensors["sink_k"], tensors["sink_v"], visible)
        senders = [torch.cat([a, b], axis) for a, b, axis in zip(old, senders, AXES.values(), strict=True)]
    keys, values, valid = senders
    return Senders(keys, values, valid, leaving, position, after)


def _has_sinks(tensors: Mapping[str, Tensor], new: Mapping[str, Tensor], sinks: int) -> bool:
    pairs = {f"sink_{name.removeprefix('tail_')}": x for name, x in new.items()}
    fit = all(name in tensors and _follows(tensors[name], x) for name, x in pairs.items())
    return fit and tensors["sink_valid"].shape[1] == tensors["sink_k"].shape[2] == tensors["sink_v"].shape[2] == sinks


def _sinks(new: Mapping[str, Tensor], state: State, limit: int) -> tuple[dict[str, Tensor], Tensor]:
    """(the sinks after a new token, which may be one; those before it that no ring of `limit` holds, (B, s))."""
    old, position = state.tensors, state.length[:, None]
    index = torch.arange(old["sink_valid"].shape[1], device=position.device)
    here = index == position
    after = {f"sink_{n}": torch.where(here[:, None, :, None], new[f"tail_{n}"], old[f"sink_{n}"]) for n in ("k", "v")}
    return after | {"sink_valid": here | old["sink_valid"]}, old["sink_valid"] & (index < position - limit)


def _follows(old: Tensor, new: Tensor) -> bool:
    """Whether senders (B, Hk, R, D), or their validity (B, R), can be followed by one more."""
    where = 1 if new.dim() == 2 else 2
    sizes = zip(old.shape, new.shape, strict=True) if old.dim() == new.dim() else ((0, 1),)
    return old.dtype == new.dtype and all(a == b for axis, (a, b) in enumerate(sizes) if axis != where)


def declared(specs: tuple[TensorSpec, ...], tensors: Mapping[str, Tensor], q: Tensor) -> bool:
    """Whether a call of one token passes what the weights declare, in the shapes that they declare."""
    if not specs:
        return not tensors
    known = {spec.name: spec for spec in specs}
    if not all(name in known for name in tensors):
        return False
    sizes = {"B": q.shape[0], "H": q.shape[1], "K": 1, "D": q.shape[3]}
    for name, spec in known.items():
        if name not in tensors:
            if not spec.optional:
                return False
            continue
        x = tensors[name]
        if x.dim() != len(spec.dims) or x.device != q.device or not x.is_floating_point():
            return False
        for size, dim in zip(x.shape, spec.dims, strict=True):
            expected = int(dim) if dim.isdigit() else sizes.get(dim, size)
            if size != expected and not (dim in ("B", "H") and size == 1):
                return False
    return True
