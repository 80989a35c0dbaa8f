"""What the attention weights of a head look like: sums over blocks, and the numbers that they give."""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.inspect._block import Block
from quadform.inspect._grid import Grid
from quadform.inspect.candidates import NEAR

MASS = 0.95
LONGEST_DECAY = 64

STRUCTURE: dict[str, str] = {
    "effective_degree": "mean over tokens of exp(entropy of the weights): how many keys a token really attends to",
    "edges_95": "mean number of a token's strongest edges that carry 95 % of its weight",
    "sink_mass": "mean weight on the sink tokens (bidirectional heads: first and last; causal heads: the first four; "
    "images: class and register tokens)",
    "window_mass": "share of the weight outside the sinks that lies within the 32-token window (images: 7 x 7)",
    "window_95": "smallest distance within which 95 % of the weight outside the sinks lies",
    "offset_share": "R²: share of the variance of the weights that depends on j - i only (1 for a convolution)",
    "half_life": "distance over which the mean weight outside the sinks halves, by a line through its logarithm; none "
    "where it does not fall",
    "decay_fit": "R² of that line: 1 where the mean weight decays exponentially",
    "rank": "mean over sequences of the smallest rank at which the weights have an error of 5 %; computed with the bounds",
}
"""The structure statistics of the report and what they mean."""


def observe(block: Block) -> dict[str, Tensor]:
    """Sums over a block's measured rows, each with heads first, to be added up over blocks.

    The entries `offset_*` have one column for each j - i, as numbered by `Grid.bin`; cross-attention has none.
    """
    weights = block.measured(block.weights)
    far = weights.masked_fill(block.sinks, 0.0)
    degree = torch.special.entr(weights).sum(-1).exp()
    sorted_mass = weights.sort(-1, descending=True).values.cumsum(-1)
    edges = (sorted_mass < MASS * sorted_mass[..., -1:]).sum(-1) + 1
    sums = {
        "rows": block.valid.sum().expand(weights.shape[1]),
        "degree": block.measured(degree).sum((0, 2)),
        "edges": block.measured(edges).sum((0, 2)),
        "sinks": weights.sum((0, 2, 3)) - far.sum((0, 2, 3)),
        "far": far.sum((0, 2, 3)),
    }
    if block.captured.cross:
        return sums
    near = far.masked_fill(~block.within(NEAR.reach(block.captured)), 0.0)
    pairs = (block.keep & block.valid[:, None, :, None]).expand(-1, weights.shape[1], -1, -1)
    offsets = {"pairs": pairs, "weight": weights, "square": weights.square(), "far": far}
    return {
        **sums,
        "near": near.sum((0, 2, 3)),
        **{f"offset_{name}": by_offset(values, block) for name, values in offsets.items()},
    }


def by_offset(values: Tensor, block: Block) -> Tensor:
    """(H, bins): values (B, H, R, N) added up over all pairs with the same j - i."""
    place = block.captured.place
    bins = block.once(f"bins {block.first}", lambda: place.bin(block.rows, values.device).flatten())
    sums = torch.zeros(values.shape[1], place.bins + 1, dtype=torch.float64, device=values.device)
    return sums.index_add_(1, bins, values.sum(0).double().flatten(1))[:, :-1]


def distances(place: Grid, device: torch.device | None = None) -> Tensor:
    """(bins): the distance of each offset, in the dimension of the grid where it is most."""
    axes = [torch.arange(1 - size, size, device=device).abs() for size in place.sizes]
    return torch.cartesian_prod(*axes).view(-1, place.dims).amax(-1)


def by_distance(sums: Tensor, place: Grid) -> Tensor:
    """(H, longest + 1): sums (H, bins) added up over all offsets of the same distance."""
    far = torch.zeros(sums.shape[0], max(place.sizes), dtype=sums.dtype, device=sums.device)
    return far.index_add_(1, distances(place, sums.device), sums)


def summarise(sums: dict[str, Tensor], place: Grid) -> dict[str, list[float | None]]:
    """The statistics of `STRUCTURE`, one number for each head; None where one is not defined."""
    rows, far = sums["rows"].clamp(min=1), sums["far"]
    found = {
        "effective_degree": sums["degree"] / rows,
        "edges_95": sums["edges"] / rows,
        "sink_mass": sums["sinks"] / rows,
    }
    if "near" in sums:
        none = far <= 1e-12 * rows
        half_life, fit = _decay(sums, place)
        total = by_distance(sums["offset_far"], place).cumsum(-1)
        found |= {
            "window_mass": torch.where(none, 1.0, sums["near"] / far.clamp(min=1e-300)),
            "window_95": (total < MASS * total[:, -1:]).sum(-1).double(),
            "offset_share": _offset_share(sums["offset_pairs"], sums["offset_weight"], sums["offset_square"]),
            "half_life": half_life,
            "decay_fit": fit,
        }
    return {
        name: [number(value) for value in found[name].tolist()] if name in found else [None] * len(rows)
        for name in STRUCTURE
    }


def number(value: float) -> float | None:
    """The value, or None where it is not finite."""
    return value if value == value and abs(value) != float("inf") else None


def _offset_share(pairs: Tensor, weight: Tensor, square: Tensor) -> Tensor:
    total = square.sum(-1) - weight.sum(-1).square() / pairs.sum(-1).clamp(min=1)
    within = (square - weight.square() / pairs.clamp(min=1)).sum(-1)
    constant = total <= 1e-10 * square.sum(-1)
    return torch.where(constant, 1.0, 1.0 - within / total.masked_fill(constant, 1.0)).clamp(0.0, 1.0)


def _decay(sums: dict[str, Tensor], place: Grid) -> tuple[Tensor, Tensor]:
    """(half-life, R²) of log(mean weight) = a - d log(2) / half-life over the distances d >= 1; NaN where none."""
    weight, pairs = (by_distance(sums[f"offset_{name}"], place)[:, 1 : LONGEST_DECAY + 1] for name in ("far", "pairs"))
    used = (pairs > 0) & (weight > 1e-12 * pairs)
    y = torch.where(used, (weight / pairs.clamp(min=1)).clamp(min=1e-300).log(), 0.0)
    x = torch.arange(1, y.shape[1] + 1, dtype=y.dtype, device=y.device).expand_as(y)
    count = used.sum(-1, keepdim=True)
    dx, dy = ((z - (z * used).sum(-1, keepdim=True) / count.clamp(min=1)) * used for z in (x, y))
    slope = (dx * dy).sum(-1) / dx.square().sum(-1).clamp(min=1e-300)
    fit = slope.square() * dx.square().sum(-1) / dy.square().sum(-1).clamp(min=1e-300)
    falls = (count[:, 0] > 2) & (slope < 0)
    nan = torch.full_like(slope, torch.nan)
    return torch.where(falls, -torch.log(torch.tensor(2.0)) / slope, nan), torch.where(falls, fit, nan)
