"""Where the tokens of a sequence stand: on a line, or on a grid behind tokens without a place."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from quadform._errors import ArgumentError


@dataclass(frozen=True)
class Grid:
    """`special` tokens without a place (class and register tokens), then the cells of a grid, row by row.

    A text or a sound is a grid of one dimension without special tokens. Offsets j - i exist between cells only.

    Attributes:
        sizes: cells in each dimension, slowest first, such as (16, 16) for an image of 16 x 16 patches.
        special: how many tokens come before the grid.
    """

    sizes: tuple[int, ...]
    special: int = 0

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 0 or self.special < 0:
            raise ArgumentError("grid", "sizes and a number of special tokens that are not negative", self)

    @property
    def dims(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @property
    def tokens(self) -> int:
        """Number of tokens, special ones included."""
        return self.special + prod(self.sizes)

    @property
    def bins(self) -> int:
        """How many different offsets two cells can have."""
        return prod(max(0, 2 * size - 1) for size in self.sizes)

    def cells(self, tokens: slice | Tensor, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """((n, dims) coordinates, (n) whether the token has a place) of some tokens; special ones get coordinate 0."""
        index = tokens if isinstance(tokens, Tensor) else torch.arange(self.tokens, device=device)[tokens]
        placed, rest, columns = index >= self.special, (index - self.special).clamp(min=0), []
        for size in reversed(self.sizes):
            columns.append(rest % max(1, size))
            rest = rest // max(1, size)
        return torch.stack(columns[::-1], -1), placed

    def offsets(self, rows: slice, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """((R, N, dims) j - i for the receivers `rows` and all senders, (R, N) whether both have a place)."""
        receivers, placed = self.cells(rows, device)
        senders, has_place = self.cells(slice(None), device)
        return senders - receivers[:, None], placed[:, None] & has_place

    def within(self, rows: slice, reach: tuple[tuple[int, int], ...], device: torch.device | None = None) -> Tensor:
        """(R, N): senders at most reach[d] = (before, after) cells away from the receiver in every dimension d."""
        offsets, near = self.offsets(rows, device)
        for at, (before, after) in enumerate(reach):
            near = near & (offsets[..., at] >= -before) & (offsets[..., at] <= after)
        return near

    def bin(self, rows: slice, device: torch.device | None = None) -> Tensor:
        """(R, N): the number of each pair's offset, from 0 to bins - 1 in order of j - i; `bins` without one."""
        offsets, placed = self.offsets(rows, device)
        number = torch.zeros(offsets.shape[:2], dtype=torch.long, device=offsets.device)
        for at, size in enumerate(self.sizes):
            number = number * (2 * size - 1) + offsets[..., at] + size - 1
        return number.masked_fill(~placed, self.bins)
