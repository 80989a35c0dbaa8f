"""Buffers that states share underneath: a stream writes behind what it has, and what a state shows never changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor

Named = dict[str, Tensor]
SMALLEST = 64


@dataclass(eq=False)
class Buffer:
    """Room for senders: each entry's storage has `capacity` along its axis, of which `used` belong to some state."""

    storage: Named
    axes: Mapping[str, int]
    capacity: int
    used: int
    lock: Lock = field(default_factory=Lock)

    def claim(self, end: int, count: int) -> bool:
        """Takes the `count` places behind `end`, unless another state has taken them or there are not so many."""
        with self.lock:
            if self.used != end or end + count > self.capacity:
                return False
            self.used = end + count
            return True

    def writable(self) -> bool:
        """Whether this thread may write: what inference mode has made is read-only outside of it."""
        return torch.is_inference_mode_enabled() or not any(x.is_inference() for x in self.storage.values())


@dataclass(frozen=True, eq=False)
class Place:
    """The senders start ... end - 1 of a buffer."""

    buffer: Buffer
    start: int
    end: int

    def views(self) -> Named:
        axes, size = self.buffer.axes, self.end - self.start
        return {name: x.narrow(axes[name], self.start, size) for name, x in self.buffer.storage.items()}

    def last(self, size: int) -> Place:
        """The last `size` of them."""
        return Place(self.buffer, self.end - size, self.end)


class Placed(dict[str, Tensor]):
    """Entries of a state, some of which are views of a buffer; a copy or a pickle of it is a plain dict."""

    def __init__(self, entries: Mapping[str, Tensor], place: Place) -> None:
        super().__init__(entries)
        self.place = place

    def __or__(self, other: Any) -> Any:
        return Placed({**self, **other}, self.place)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def shareable(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> bool:
    """Whether senders may be written into a buffer: not while autograd or a compiler follows them."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (*old.values(), *new.values())))


def extend(entries: Mapping[str, Tensor], new: Named, axes: Mapping[str, int]) -> Place:
    """The senders of `entries` (by the names of `new`) followed by those of `new`.

    They are written behind the old ones where no other state has been there; else all move to a buffer of twice the size.
    """
    name = next(iter(new))
    count = new[name].shape[axes[name]]
    place = entries.place if isinstance(entries, Placed) else None
    if place is None or not place.buffer.writable() or not place.buffer.claim(place.end, count):
        place = _moved({n: entries[n] for n in new}, axes, count)
    buffer, end = place.buffer, place.end
    for n, x in new.items():
        buffer.storage[n].data.narrow(axes[n], end, count).copy_(x)  # .data: graphs that hold older views stay valid
    return Place(buffer, place.start, end + count)


def _moved(old: Named, axes: Mapping[str, int], count: int) -> Place:
    """The old senders at the start of a new buffer, with `count` places behind them taken."""
    name = next(iter(old))
    size = old[name].shape[axes[name]]
    capacity = max(2 * (size + count), SMALLEST)
    storage = {}
    for n, x in old.items():
        shape = list(x.shape)
        shape[axes[n]] = capacity
        storage[n] = torch.empty(shape, dtype=x.dtype, device=x.device)
        storage[n].data.narrow(axes[n], 0, size).copy_(x)
    return Place(Buffer(storage, axes, capacity, size + count), 0, size)
