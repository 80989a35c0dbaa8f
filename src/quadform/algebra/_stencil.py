"""Stencil edges: the taps of a convolution on an n-D grid, and its border rules."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._description import Checks, description
from quadform.algebra._edge_list import EdgeList, from_slots
from quadform.algebra._edges import GridEdges
from quadform.algebra._layout import Layout, coordinates
from quadform.algebra._reach import Reach
from quadform.algebra._views import Slots

BORDERS = ("zeros", "renormalise", "replicate", "circular", "reflect", "valid")
Sizes = int | tuple[int, ...]


@description
@dataclass(frozen=True)
class Stencil(GridEdges):
    """Receiver o takes the senders at o * stride + t * dilation - padding for each tap t of the kernel.

        p_t(o) = o * stride + t * dilation - padding_left,     j_t(o) = border(p_t(o))

    n outputs of a grid of size m: n = (m + padding_left + padding_right - dilation (kernel - 1) - 1) // stride + 1.
    `kernel`, `stride`, `dilation` and `padding` are one number or one a dimension; `padding` is "same" (the output of
    stride 1 has the size of the input; the extra cell of an even kernel is on the right), "causal" (all on the left), or
    (left, right) a dimension. Taps are numbered in row-major order, as in the weight of `nn.Conv`.

    Borders are a map on senders. "zeros": a sender with value 0 and q'k = 0 that counts in a normaliser. "renormalise": no
    sender. "replicate", "circular", "reflect": the sender that the map names, so an edge may count twice. "valid": no
    padding at all. Reflection needs padding < size; where it does not hold the map is applied repeatedly.

    Errors: ArgumentError for a kernel or stride below 1, an unknown border, or padding with border "valid".

    Reference (one dimension, zeros):

        out[o] = sum(taps[t] * v[o * stride + t * dilation - left] for t in range(kernel))
    """

    kernel: Sizes
    stride: Sizes = 1
    dilation: Sizes = 1
    padding: str | Sizes | tuple[tuple[int, int], ...] = "same"
    border: str = "zeros"

    def __post_init__(self) -> None:
        for name in ("kernel", "stride", "dilation"):
            value = _freeze(getattr(self, name))
            object.__setattr__(self, name, value)
            sizes = value if isinstance(value, tuple) else (value,)
            if not sizes or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in sizes):
                raise ArgumentError(f"Stencil.{name}", "an integer of at least 1, or one a dimension", repr(value))
            if isinstance(value, tuple) and len(value) != self.dims:
                raise ArgumentError(f"Stencil.{name}", f"{self.dims} sizes as in kernel", repr(value))
        Checks.choice(self, "border", BORDERS)
        if self.border == "valid":
            if self.padding not in ("same", 0):
                raise ArgumentError("Stencil.padding", 'nothing beside border "valid"', repr(self.padding))
            object.__setattr__(self, "padding", 0)
        object.__setattr__(self, "padding", _freeze(self.padding))
        self.pads  # noqa: B018  refuses a bad padding here rather than at the first call

    @property
    def dims(self) -> int:
        """Dimensions of the grid."""
        return len(self.kernel) if isinstance(self.kernel, tuple) else 1

    @property
    def taps(self) -> int:
        """Number of taps, prod(kernel)."""
        return math.prod(_each(self.kernel, self.dims))

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """(left, right) padding of each dimension."""
        out: list[tuple[int, int]] = []
        for d, (kernel, dilation) in enumerate(
            zip(_each(self.kernel, self.dims), _each(self.dilation, self.dims), strict=True)
        ):
            total = dilation * (kernel - 1)
            if self.padding == "same":
                out.append((total // 2, total - total // 2))
            elif self.padding == "causal":
                out.append((total, 0))
            else:
                out.append(self._given_padding(d))
        return tuple(out)

    def _given_padding(self, d: int) -> tuple[int, int]:
        given = self.padding
        value = given[d] if isinstance(given, tuple) and len(given) == self.dims and self.dims > 1 else given
        if self.dims == 1 and isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        pair: Any = (value, value) if isinstance(value, int) else value
        if (
            not isinstance(pair, tuple)
            or len(pair) != 2
            or any(isinstance(p, bool) or not isinstance(p, int) or p < 0 for p in pair)
        ):
            raise ArgumentError("Stencil.padding", '"same", "causal", or counts of at least 0 a dimension', repr(given))
        return pair[0], pair[1]

    @property
    def is_causal(self) -> bool:
        """One dimension, stride 1, output and input of the same length, all padding on the left, no look-ahead border."""
        return (
            self.dims == 1
            and _each(self.stride, 1) == (1,)
            and self.pads[0] == (_each(self.dilation, 1)[0] * (self.taps - 1), 0)
            and (self.border in ("zeros", "renormalise", "replicate") or self.taps == 1)
        )

    @property
    def by_slots(self) -> bool:
        return True

    @property
    def reach(self) -> Reach:
        if self.dims > 1 or _each(self.stride, 1) != (1,) or self.border not in ("zeros", "renormalise", "valid"):
            return None, None
        left = self.pads[0][0]
        return max(left, 0), max(_each(self.dilation, 1)[0] * (self.taps - 1) - left, 0)

    @property
    def band(self) -> Reach:
        return (self.pads[0][0], 0) if self.is_causal else self.reach

    def output_size(self, size: int, d: int = 0) -> int:
        """How many receivers a dimension of `size` senders has."""
        low, high = self.pads[d]
        span = _each(self.dilation, self.dims)[d] * (_each(self.kernel, self.dims)[d] - 1) + 1
        return max((size + low + high - span) // _each(self.stride, self.dims)[d] + 1, 0) if size else 0

    def output_grid(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.output_size(size, d) for d, size in enumerate(grid))

    def receivers(self, k_len: Tensor, queries: int, keys: int) -> Tensor | None:
        if self.dims > 1:
            return torch.full_like(k_len, queries)
        low, high = self.pads[0]
        span = _each(self.dilation, 1)[0] * (self.taps - 1) + 1
        out = torch.div(k_len + low + high - span, _each(self.stride, 1)[0], rounding_mode="floor") + 1
        return torch.where(k_len > 0, out.clamp(min=0), 0)

    def senders(self, q_len: Tensor, senders: int, receivers: int) -> Tensor:
        """The same surplus over the least number that `senders` has: a row is transposed as it would be alone."""
        if self.dims > 1:
            return torch.full_like(q_len, senders)
        missing = (receivers - q_len) * _each(self.stride, 1)[0]
        return torch.where(q_len > 0, (senders - missing).clamp(min=0), 0)

    def _least(self, out: int, d: int) -> int:
        """The smallest dimension of senders that has `out` receivers."""
        low, high = self.pads[d]
        span = _each(self.dilation, self.dims)[d] * (_each(self.kernel, self.dims)[d] - 1) + 1
        return (out - 1) * _each(self.stride, self.dims)[d] + span - low - high

    def senders_grid(self, grid: tuple[int, ...], senders: int) -> tuple[int, ...]:
        """The input grid of which `grid` is the output; in one dimension it is the number of senders itself."""
        if self.dims == 1:
            return (senders,)
        return tuple(self._least(size, d) if size else 0 for d, size in enumerate(grid))

    def count_queries(self, keys: int, grid: tuple[int, ...] | None) -> int:
        return math.prod(self.output_grid(grid or (keys,)))

    def count_senders(self, keys: int, grid: tuple[int, ...] | None) -> int:
        return math.prod(max(self._least(n, d), 0) if n else 0 for d, n in enumerate(grid or (keys,)))

    def check(self, queries: int, keys: int, grid: tuple[int, ...]) -> None:
        if len(grid) != self.dims:
            raise ArgumentError("grid", f"{self.dims} sizes for {self}", repr(grid))
        expected = math.prod(self.output_grid(grid))
        if queries != expected:
            raise ArgumentError("q", f"{expected} queries, the outputs of {self} on a grid {grid}", str(queries))

    def view(self, at: Layout, per_edge: bool = False) -> Slots:
        """The taps of every receiver: sender index, used slots and unwrapped offsets."""
        device, sizes = at.q_pos.device, at.grid
        stride, dilation = _each(self.stride, self.dims), _each(self.dilation, self.dims)
        taps = torch.tensor(list(itertools.product(*map(range, _each(self.kernel, self.dims)))), device=device)
        low = torch.tensor([p[0] for p in self.pads], device=device)
        shape = (max(at.q_pos.shape[0], at.k_len.shape[0], at.q_len.shape[0]), 1, at.queries, self.taps)
        index = torch.zeros(shape, dtype=torch.int64, device=device)
        inside = torch.ones(shape, dtype=torch.bool, device=device)
        offsets = []
        receiver = coordinates(at.q_pos, self.output_grid(sizes))
        for d in range(self.dims):
            size = at.k_len if self.dims == 1 else torch.full_like(at.k_len, sizes[d])
            here = receiver[d][:, None, :, None]
            point = here * stride[d] + taps[:, d] * dilation[d] - low[d]
            mapped, ok = border_map(point, size[:, None, None, None], self.border)
            index, inside = index * sizes[d] + mapped, inside & ok
            offsets.append((point - here).expand(shape))
        exists = ((at.q_pos >= 0) & (at.q_pos < at.q_len[:, None]))[:, None, :, None]
        index = index - (at.k_pos[:, :1, None, None] if at.keys else 0)
        here = (index >= 0) & (index < at.keys)
        used = exists & torch.where(inside, here, torch.tensor(self.border == "zeros", device=device))
        index = torch.where(inside & here, index, at.keys)
        if at.k_valid is not None:
            keep = torch.nn.functional.pad(at.k_valid, (0, 1), value=True)[:, None, None, :]
            rows = max(index.shape[0], keep.shape[0])
            index = index.expand(rows, -1, -1, -1)
            kept = keep.expand(rows, 1, at.queries, -1).gather(-1, index)
            used = used & kept
        numbers = torch.arange(self.taps, device=device)[None, None, None]
        tap = numbers.expand(index.shape[0], 1, *shape[2:])
        return Slots(index, used.expand(index.shape), torch.stack(offsets, -1), at, tap)

    def relation(self, at: Layout) -> Tensor:
        slots = self.view(dataclasses.replace(at, k_valid=None))
        used = (slots.count & (slots.index < at.keys)).long()
        dense = used.new_zeros(*used.shape[:-1], at.keys + 1).scatter_add(-1, slots.index, used)[..., :-1]
        return dense if self.border in ("replicate", "circular", "reflect") else dense > 0

    def edge_list(self, at: Layout, rows: int = 256) -> EdgeList:
        return from_slots(self.view(at), at)

    def offsets(self, at: Layout) -> Tensor | None:
        if self.border not in ("zeros", "renormalise", "valid") or set(_each(self.stride, self.dims)) != {1}:
            return None
        taps = torch.tensor(list(itertools.product(*map(range, _each(self.kernel, self.dims)))), device=at.q_pos.device)
        low = torch.tensor([p[0] for p in self.pads], device=at.q_pos.device)
        return taps * torch.tensor(_each(self.dilation, self.dims), device=at.q_pos.device) - low


def border_map(point: Tensor, size: Tensor, border: str) -> tuple[Tensor, Tensor]:
    """(index, inside): the sender that stands for an unwrapped coordinate in a dimension of `size` senders.

    Reference: torch.nn.functional.pad with mode "replicate", "circular" or "reflect".
    """
    point, size = torch.broadcast_tensors(point, size)
    inside = (point >= 0) & (point < size)
    if border in ("zeros", "renormalise", "valid"):
        return torch.where(inside, point, 0), inside
    some = size > 0
    last = (size - 1).clamp(min=0)
    if border == "replicate":
        mapped = torch.minimum(point.clamp(min=0), last)
    elif border == "circular":
        mapped = point % size.clamp(min=1)
    else:
        period = (2 * last).clamp(min=1)
        folded = point % period
        mapped = torch.where(last == 0, 0, torch.minimum(folded, period - folded))
    return torch.where(some, mapped, 0), some


def _freeze(value: object) -> object:
    return tuple(_freeze(v) for v in value) if isinstance(value, list | tuple) else value


def _each(value: Sizes, dims: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * dims
