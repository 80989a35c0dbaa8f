"""From scores to weights: the one place where a row is divided by its sum."""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.algebra import Operands, Pairs, Slots, Weights


def pair_weights(weights: Weights, view: Pairs | Slots, operands: Operands) -> Tensor:
    """w_ij of prepared operands on a view that holds all senders of its receivers: (B, H, *pairs), 0 off the edges.

    Log-weights use the row's own maximum over its edges; a row without edges, or whose sum is 0, is 0 with gradient 0.
    """
    scores, count = weights.scores(view, operands), view.count
    present = count > 0
    if not weights.log:
        w = torch.where(present, scores, 0)
        w = w if count.dtype == torch.bool else w * count
        return divide(w, w.sum(-1, keepdim=True)) if weights.normalised else w
    scores = scores.masked_fill(~present, -torch.inf)
    top = scores.detach().amax(-1, keepdim=True) if scores.shape[-1] else scores.new_zeros(*scores.shape[:-1], 1)
    w = torch.exp(scores - torch.where(top == -torch.inf, 0, top))
    w = w if count.dtype == torch.bool else w * count
    return divide(w, w.sum(-1, keepdim=True))


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 (with gradient 0) where the denominator is 0."""
    zero = denominator == 0
    return torch.where(zero, 0, numerator / torch.where(zero, 1, denominator))
