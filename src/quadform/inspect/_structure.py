"""What the attention weights of a head look like: sums over blocks, and the numbers that they give."""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.inspect._block import Block
from quadform.inspect._candidates import NEAR

STRUCTURE: dict[str, str] = {
    "effective_degree": "mean over tokens of exp(entropy of the weights): how many keys a token really attends to",
    "sink_mass": "mean weight on the sink tokens (bidirectional heads: first and last; causal heads: the first four)",
    "window_mass": "share of the weight outside the sinks that lies within the 32-token window",
    "offset_share": "R²: share of the variance of the weights that depends on j - i only (1 for a convolution)",
}
"""The structure statistics of the report and what they mean."""


def observe(block: Block) -> dict[str, Tensor]:
    """Sums over a block's valid rows, each with heads first, to be added up over blocks.

    The entries `offset_*` have one column for each j - i from -(N - 1) to N - 1.
    """
    weights = block.rows(block.weights)
    far = weights.masked_fill(block.sinks, 0.0)
    near = far.masked_fill(~block.window(*NEAR.reach(block.causal)), 0.0)
    degree = torch.special.entr(block.weights).sum(-1).exp()
    pairs = (block.keep & block.valid[:, None, :, None]).expand(-1, weights.shape[1], -1, -1)
    return {
        "rows": block.valid.sum().expand(weights.shape[1]),
        "degree": block.rows(degree).sum((0, 2)),
        "sinks": (weights.sum((0, 2, 3)) - far.sum((0, 2, 3))),
        "near": near.sum((0, 2, 3)),
        "far": far.sum((0, 2, 3)),
        "offset_pairs": by_offset(pairs, block),
        "offset_weight": by_offset(weights, block),
        "offset_square": by_offset(weights.square(), block),
        "offset_far": by_offset(far, block),
    }


def by_offset(values: Tensor, block: Block) -> Tensor:
    """(H, 2N - 1): values (B, H, R, N) added up over all pairs with the same j - i."""
    n = values.shape[-1]
    sums = torch.zeros(values.shape[1], 2 * n - 1, dtype=torch.float64, device=values.device)
    return sums.index_add_(1, (block.offsets + n - 1).flatten(), values.sum(0).double().flatten(1))


def summarise(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """The statistics of `STRUCTURE`, one number for each head."""
    rows = sums["rows"].clamp(min=1)
    far = sums["far"]
    return {
        "effective_degree": sums["degree"] / rows,
        "sink_mass": sums["sinks"] / rows,
        "window_mass": torch.where(far > 1e-12 * rows, sums["near"] / far.clamp(min=1e-300), 1.0),
        "offset_share": _offset_share(sums["offset_pairs"], sums["offset_weight"], sums["offset_square"]),
    }


def _offset_share(pairs: Tensor, weight: Tensor, square: Tensor) -> Tensor:
    total = square.sum(-1) - weight.sum(-1).square() / pairs.sum(-1).clamp(min=1)
    within = (square - weight.square() / pairs.clamp(min=1)).sum(-1)
    constant = total <= 1e-10 * square.sum(-1)
    return torch.where(constant, 1.0, 1.0 - within / total.masked_fill(constant, 1.0)).clamp(0.0, 1.0)
