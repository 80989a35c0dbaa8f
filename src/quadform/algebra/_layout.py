"""Where the queries and keys of one call stand: positions, lengths, and which keys exist.

The sequence of a row of the batch is the span from its first to its last kept key. Positions count inside that span, so
padding on either side equals the shorter sequence; holes inside the span remove senders and keep positions.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quadform._errors import ArgumentError, Refused

if TYPE_CHECKING:
    from quadform.algebra._edges import Edges

Lengths = Tensor | tuple[Tensor, Tensor] | None
Positions = Tensor | tuple[Tensor, Tensor] | None


@dataclass(frozen=True, eq=False)
class Layout:
    """Positions of n receivers and m senders. Bp is 1 or the batch size B; all tensors are on the call's device.

    Attributes:
        q_pos: (Bp, n) int64, position of each receiver.
        k_pos: (Bp, m) int64, position of each sender.
        q_len, k_len: (Bp,) int64, how many positions the receivers' and the senders' sequence has.
        k_valid: (Bp, m) bool, senders that exist and are kept; None when all are.
        grid: sizes whose product is m; senders are numbered in row-major order. (m,) for a sequence.
        shift: q_pos - k_pos == (i - j) + shift in every row, or None where rows differ or positions were given.
        padded: some row may be shorter than m.
        q_valid: (Bp, n) bool, receivers inside their row's own sequence; None when all are. Nothing is masked by it: it
            says whose non-finite values are padding.
        origin: index in the call's tensors of the first receiver and of the first sender of this block.
    """

    q_pos: Tensor
    k_pos: Tensor
    q_len: Tensor
    k_len: Tensor
    k_valid: Tensor | None
    grid: tuple[int, ...]
    shift: int | None
    padded: bool
    q_valid: Tensor | None = None
    origin: tuple[int, int] = (0, 0)

    @property
    def queries(self) -> int:
        return self.q_pos.shape[-1]

    @property
    def keys(self) -> int:
        return self.k_pos.shape[-1]

    @property
    def rows(self) -> int:
        """Bp: 1 where all rows of the batch stand alike, else the batch size."""
        sizes = [x.shape[0] for x in (self.q_pos, self.k_pos, self.k_len, self.k_valid) if x is not None]
        return 0 if 0 in sizes else max(sizes)

    def swapped(self, grid: tuple[int, ...]) -> Layout:
        """The layout in which receivers send: for `edges.T`. Sender validity belongs to the call and is dropped."""
        shift = None if self.shift is None else -self.shift
        origin = self.origin[::-1]
        return Layout(self.k_pos, self.q_pos, self.k_len, self.q_len, None, grid, shift, self.padded, None, origin)

    def block(self, rows: slice, columns: slice) -> Layout:
        """The receivers `rows` and the senders `columns` alone, with their positions unchanged."""
        first, left = rows.start or 0, columns.start or 0
        return dataclasses.replace(
            self,
            q_pos=self.q_pos[:, rows],
            k_pos=self.k_pos[:, columns],
            k_valid=None if self.k_valid is None else self.k_valid[:, columns],
            shift=None if self.shift is None else self.shift + first - left,
            origin=(self.origin[0] + first, self.origin[1] + left),
        )

    def row(self, b: int) -> Layout:
        """The layout of row b of the batch alone."""

        def pick(x: Tensor) -> Tensor:
            return x[b : b + 1] if x.shape[0] > 1 else x

        return dataclasses.replace(
            self,
            q_pos=pick(self.q_pos),
            k_pos=pick(self.k_pos),
            q_len=pick(self.q_len),
            k_len=pick(self.k_len),
            k_valid=None if self.k_valid is None else pick(self.k_valid),
            q_valid=None,
        )


def pair_offsets(at: Layout) -> Tensor:
    """k_pos - q_pos as (Bp, 1, n, m, g), in grid coordinates."""
    q, k = coordinates(at.q_pos, at.grid), coordinates(at.k_pos, at.grid)
    return torch.stack([b[:, None, None, :] - a[:, None, :, None] for a, b in zip(q, k, strict=True)], -1)


def coordinates(position: Tensor, grid: tuple[int, ...]) -> list[Tensor]:
    """Grid coordinates of row-major positions; positions themselves in one dimension, where they may lie outside."""
    if len(grid) == 1:
        return [position]
    out = []
    for size in reversed(grid):
        out.append(position % max(size, 1))
        position = position // max(size, 1)
    return out[::-1]


def build_layout(
    edges: Edges,
    batch: int,
    queries: int,
    keys: int,
    device: torch.device,
    lengths: Lengths = None,
    key_mask: Tensor | None = None,
    positions: Positions = None,
    grid: tuple[int, ...] | None = None,
) -> Layout:
    """Validates and combines `lengths`, `key_mask`, `positions` and `grid` of a call into a Layout."""
    grid = _check_grid(grid, keys)
    flat = len(grid) == 1
    if batch == 0:
        lengths, key_mask, positions = _check_empty(lengths, key_mask, positions, queries, keys, device)
    k_start = torch.zeros(1, dtype=torch.int64, device=device)
    k_len = torch.full((1,), keys, dtype=torch.int64, device=device)
    q_len: Tensor | None = None
    k_valid: Tensor | None = None
    index = torch.arange(keys, device=device)
    if lengths is not None:
        if not flat:
            raise ArgumentError("lengths", "a one-dimensional sequence; use key_mask on a grid", f"grid {grid}")
        q_len, k_len = _check_lengths(lengths, batch, queries, keys, device)
        k_valid = index < k_len[:, None]
    if key_mask is not None:
        mask = _check_mask(key_mask, batch, keys, device)
        k_valid = mask if k_valid is None else k_valid & mask
        if flat:
            k_start, k_len = _span(k_valid)
    padded = flat and k_valid is not None

    own = edges.receivers(k_len, queries, keys)
    zero = torch.zeros_like(k_start)
    if positions is not None:
        if own is not None:
            raise Refused(f"{edges} numbers its receivers by its own grid: positions cannot be given")
        q_pos, k_pos = _check_positions(positions, batch, queries, keys, device)
        seen = k_pos if k_valid is None else torch.where(k_valid, k_pos, -1)
        k_len = seen.amax(-1) + 1 if keys else k_len
        q_len = q_pos.amax(-1) + 1 if queries else zero
        return Layout(q_pos, k_pos, q_len, k_len, k_valid, grid, None, True)
    own_queries = queries == keys and q_len is None
    if own_queries:
        q_start, q_len, end = k_start, k_len if own is None else own, zero
    elif own is not None:
        q_start, q_len, end = zero, own, zero
    else:
        q_len = torch.full_like(k_len, queries) if q_len is None else q_len
        q_start, end = zero, k_len - q_len
        if edges.positional and key_mask is not None and flat and _has_holes(k_valid, k_len):
            raise Refused(
                f"{edges} needs positions: key_mask has holes and the {queries} queries are not the {keys} keys, "
                "so the end of the sequence does not say where the queries stand"
            )
    own_pos = torch.arange(queries, device=device) - q_start[:, None]
    q_valid = (own_pos >= 0) & (own_pos < q_len[:, None]) if padded else None
    q_pos = own_pos + end[:, None]
    k_pos = index - k_start[:, None]
    shift: int | None = None
    if own_queries:
        shift = 0
    elif not padded:
        shift = 0 if own is not None else keys - queries
    return Layout(q_pos, k_pos, q_len, k_len, k_valid, grid, shift, padded, q_valid)


def _check_empty(
    lengths: Lengths, key_mask: Tensor | None, positions: Positions, queries: int, keys: int, device: torch.device
) -> tuple[None, None, Positions]:
    """What a batch of no rows leaves of its options once they are checked: one row's positions, of any value."""
    if lengths is not None:
        _check_lengths(lengths, 0, queries, keys, device)
    if key_mask is not None:
        _check_mask(key_mask, 0, keys, device)
    if positions is not None:
        q_pos, k_pos = _check_positions(positions, 0, queries, keys, device)
        positions = q_pos.new_zeros(queries), k_pos.new_zeros(keys)
    return None, None, positions


def _span(valid: Tensor) -> tuple[Tensor, Tensor]:
    """First kept index and length of the span to the last kept one, (B,) each; (0, 0) for a row without keys."""
    n = valid.shape[-1]
    if n == 0:
        zero = torch.zeros(valid.shape[0], dtype=torch.int64, device=valid.device)
        return zero, zero
    index = torch.arange(n, device=valid.device)
    some = valid.any(-1)
    first = torch.where(valid, index, n).amin(-1)
    last = torch.where(valid, index, -1).amax(-1)
    return torch.where(some, first, 0), torch.where(some, last - first + 1, 0)


def _has_holes(valid: Tensor | None, length: Tensor) -> bool:
    return valid is not None and bool((valid.sum(-1) != length).any())


def _check_grid(grid: tuple[int, ...] | None, keys: int) -> tuple[int, ...]:
    if grid is None:
        return (keys,)
    grid = tuple(grid)
    if not grid or any(not isinstance(n, int) or n < 0 for n in grid) or math.prod(grid) != keys:
        raise ArgumentError("grid", f"sizes whose product is the number of keys, {keys}", repr(grid))
    return grid


def _check_lengths(
    lengths: Tensor | tuple[Tensor, Tensor], batch: int, queries: int, keys: int, device: torch.device
) -> tuple[Tensor | None, Tensor]:
    pair = lengths if isinstance(lengths, tuple) else (None, lengths)
    if len(pair) != 2:
        raise ArgumentError("lengths", "a tensor, or a pair (query lengths, key lengths)", f"{len(pair)} items")
    checked: list[Tensor | None] = []
    for which, value, bound in (("query", pair[0], queries), ("key", pair[1], keys)):
        if value is None:
            checked.append(None)
            continue
        if not isinstance(value, Tensor) or value.shape != (batch,) or value.is_floating_point():
            got = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ArgumentError("lengths", f"an integer tensor of shape ({batch},) of {which} lengths", got)
        value = value.to(device, torch.int64)
        if value.numel() and (int(value.amin()) < 0 or int(value.amax()) > bound):
            raise ArgumentError("lengths", f"{which} lengths between 0 and {bound}", str(value.tolist()))
        checked.append(value)
    k_len = checked[1]
    assert k_len is not None
    return checked[0], k_len


def _check_mask(mask: Tensor, batch: int, keys: int, device: torch.device) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape not in ((batch, keys), (1, keys)):
        got = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
        raise ArgumentError("key_mask", f"a bool tensor of shape ({batch}, {keys}), True = keep", got)
    return mask.to(device)


def _check_positions(
    positions: Tensor | tuple[Tensor, Tensor], batch: int, queries: int, keys: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    pair = positions if isinstance(positions, tuple) else (positions, positions)
    if len(pair) != 2:
        raise ArgumentError("positions", "a tensor, or a pair (query positions, key positions)", f"{len(pair)} items")
    out = []
    for which, value, n in (("query", pair[0], queries), ("key", pair[1], keys)):
        shapes = ((n,), (1, n), (batch, n))
        if not isinstance(value, Tensor) or value.is_floating_point() or value.shape not in shapes:
            got = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ArgumentError("positions", f"an integer tensor of {which} positions, ({n},) or ({batch}, {n})", got)
        value = value.to(device, torch.int64)
        out.append(value[None] if value.dim() == 1 else value)
    return out[0], out[1]
