"""Edges of a sequence: everything, the past, a window, some global tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._description import Checks, description
from quadform.algebra._edges import Edges
from quadform.algebra._layout import Layout
from quadform.algebra._reach import Reach


@description
@dataclass(frozen=True)
class All(Edges):
    """Every sender of every receiver: j in E(i) for all j.

    Reference:

        mask = torch.ones(n, m, dtype=torch.bool)
    """

    @property
    def positional(self) -> bool:
        return False

    def relation(self, at: Layout) -> Tensor:
        return torch.ones(1, 1, at.queries, at.keys, dtype=torch.bool, device=at.q_pos.device)

    def offsets(self, at: Layout) -> Tensor | None:
        if len(at.grid) == 1:
            return _range(at, None, None, 1)
        axes = [torch.arange(min(1 - size, 0), max(size, 1), device=at.q_pos.device) for size in at.grid]
        return torch.cartesian_prod(*axes).reshape(-1, len(at.grid))


@description
@dataclass(frozen=True)
class Causal(Edges):
    """The receiver and everything before it: j in E(i) if pos(j) <= pos(i).

    With n queries and m keys the last query stands at the last key (torch's `is_causal` aligns the first ones instead);
    a row that is shorter than m is aligned to its own end.

    Reference:

        mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    """

    @property
    def is_causal(self) -> bool:
        return True

    @property
    def reach(self) -> Reach:
        return None, 0

    def relation(self, at: Layout) -> Tensor:
        return (at.k_pos[:, None, :] <= at.q_pos[:, :, None])[:, None]

    def offsets(self, at: Layout) -> Tensor | None:
        return _range(at, None, 0, 1)


@description
@dataclass(frozen=True)
class Window(Edges):
    """`left` taps before the receiver, itself, `right` taps after it, and the first `sinks` keys.

        j in E(i)  if  pos(j) - pos(i) = t * dilation with -left <= t <= right,
                   or  pos(j) < sinks and pos(j) <= pos(i) + right * dilation

    `Window(left=W - 1)` is the last W keys, self included. Sinks never reach further ahead than the window does, so a
    window with right=0 is causal. Other libraries count differently: see `from_sliding_window` and its neighbours.

    Errors: ArgumentError for a negative count or a dilation below 1.

    Reference:

        d = torch.arange(m) - torch.arange(m - n, m)[:, None]
        mask = (d % dilation == 0) & (d >= -left * dilation) & (d <= right * dilation)
        mask |= (torch.arange(m) < sinks) & (d <= right * dilation)
    """

    left: int
    right: int = 0
    dilation: int = 1
    sinks: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (("left", 0), ("right", 0), ("dilation", 1), ("sinks", 0)):
            Checks.integer(self, name, minimum)

    @property
    def is_causal(self) -> bool:
        return self.right == 0

    @property
    def reach(self) -> Reach:
        return (None if self.sinks else self.left * self.dilation), self.right * self.dilation

    @property
    def band(self) -> Reach:
        return self.left * self.dilation, self.right * self.dilation

    def far_columns(self, at: Layout) -> Tensor | None:
        return torch.arange(self.sinks, device=at.q_pos.device)[None] if self.sinks else None

    def relation(self, at: Layout) -> Tensor:
        d = at.k_pos[:, None, :] - at.q_pos[:, :, None]
        ahead = d <= self.right * self.dilation
        near = ahead & (d >= -self.left * self.dilation)
        if self.dilation > 1:
            near &= d % self.dilation == 0
        if self.sinks:
            near |= ahead & ((at.k_pos >= 0) & (at.k_pos < self.sinks))[:, None, :]
        return near[:, None]

    def offsets(self, at: Layout) -> Tensor | None:
        return None if self.sinks else _range(at, self.left, self.right, self.dilation)


def from_sliding_window(window: int) -> Window:
    """Hugging Face's `sliding_window` W: the last W keys, self included."""
    return Window(left=_positive("window", window) - 1)


def from_flash_window(window: tuple[int, int]) -> Window:
    """flash-attention's `window_size` (left, right): left and right keys beside self."""
    return Window(left=window[0], right=window[1])


def from_exact_window(window: int) -> Window:
    """local-attention's `exact_windowsize=True` count w, causal: w keys before self, W + 1 in all."""
    return Window(left=_positive("window", window))


def from_attention_window(window: int) -> Window:
    """Longformer's `attention_window` w (even): w / 2 keys on either side, w + 1 in all."""
    if _positive("attention_window", window) % 2:
        raise ArgumentError("attention_window", "an even count", repr(window))
    return Window(left=window // 2, right=window // 2)


@description
@dataclass(frozen=True)
class Global(Edges):
    """Tokens that all see and that see all: the first, the last, and those at `indices` (positions).

        j in E(i)  if  i or j is global

    Positions count inside the row's own sequence, so `Global(first=1, last=1)` is [CLS] and [SEP] under any padding.
    Use it beside other edges: `Window(16, 16) | Global(first=1)`.

    Reference:

        mask = is_global[:, None] | is_global[None, :]
    """

    first: int = 0
    last: int = 0
    indices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        Checks.integer(self, "first", 0)
        Checks.integer(self, "last", 0)
        object.__setattr__(self, "indices", tuple(self.indices))
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in self.indices):
            raise ArgumentError("Global.indices", "positions of at least 0", repr(self.indices))

    @property
    def band(self) -> Reach:
        return 0, 0

    def far_columns(self, at: Layout) -> Tensor | None:
        return self._positions(at)

    def far_rows(self, at: Layout) -> Tensor | None:
        return self._positions(at)

    def _positions(self, at: Layout) -> Tensor:
        """The global positions of each row, (Bp, count); -1 for one that the row does not have or that is named twice."""
        device = at.k_len.device
        fixed = sorted({*range(self.first), *self.indices})
        start = torch.tensor(fixed, dtype=torch.int64, device=device)[None]
        end = at.k_len[:, None] - 1 - torch.arange(self.last, device=device)
        start = torch.where(start < at.k_len[:, None], start, -1)
        twice = (end[:, :, None] == start[:, None, :]).any(-1)
        return torch.cat([start, torch.where(twice | (end < 0), -1, end)], -1)

    def relation(self, at: Layout) -> Tensor:
        return (self.contains(at.q_pos, at.k_len)[:, :, None] | self.contains(at.k_pos, at.k_len)[:, None, :])[:, None]

    def contains(self, position: Tensor, length: Tensor) -> Tensor:
        """Which of the positions (Bp, n) are global in a sequence of that length (Bp,)."""
        inside = (position >= 0) & (position < length[:, None])
        chosen = (position < self.first) | (position >= length[:, None] - self.last)
        for index in self.indices:
            chosen |= position == index
        return inside & chosen


def _range(at: Layout, left: int | None, right: int | None, dilation: int) -> Tensor | None:
    """Offsets t * dilation with -left <= t <= right, cut to those that the layout can hold."""
    if len(at.grid) > 1 or at.shift is None:
        return None
    most = max(at.queries - 1 + at.shift, 0) // dilation
    least = max(at.keys - 1 - at.shift, 0) // dilation
    low = most if left is None else min(left, most)
    high = least if right is None else min(right, least)
    return (torch.arange(-low, high + 1, device=at.q_pos.device) * dilation)[:, None]


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(name, "a count of at least 1", repr(value))
    return value
