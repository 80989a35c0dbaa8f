"""How far edges reach: bounds on position differences, and the columns that a block of receivers can see."""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.algebra._layout import Layout

Reach = tuple[int | None, int | None]


def band_columns(reach: Reach, at: Layout, rows: slice) -> slice:
    """The columns that the receivers `rows` can reach, where positions are index + shift; else all."""
    left, right = reach
    if at.shift is None or rows.stop <= rows.start:
        return slice(0, at.keys)
    low = 0 if left is None else max(rows.start + at.shift - left, 0)
    high = at.keys if right is None else min(rows.stop + at.shift + right, at.keys)
    return slice(min(low, at.keys), max(high, min(low, at.keys)))


def smaller(a: Reach, b: Reach) -> Reach:
    low, high = (y if x is None else x if y is None else min(x, y) for x, y in zip(a, b, strict=True))
    return low, high


def larger(a: Reach, b: Reach) -> Reach:
    low, high = (None if x is None or y is None else max(x, y) for x, y in zip(a, b, strict=True))
    return low, high


def union(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Both sets of positions, (Bp, c) each; a position named twice stays once (the other becomes -1)."""
    if a is None or b is None:
        return b if a is None else a
    rows = max(a.shape[0], b.shape[0])
    a, b = a.expand(rows, -1), b.expand(rows, -1)
    twice = (b[:, :, None] == a[:, None, :]).any(-1)
    return torch.cat([a, torch.where(twice, -1, b)], -1)
