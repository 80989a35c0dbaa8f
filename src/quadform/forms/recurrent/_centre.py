"""The running centre of a feature map: each receiver's mean over its senders, from the sums that a stream carries."""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.algebra import Kernel, Weights


def recentred(weights: Weights, q: Tensor, k: Tensor, shift: int | None, before: Tensor | None) -> Tensor:
    """Features of receivers (B, H, n, m) that know the sums over their senders; q itself where the map needs none.

    Args:
        q, k: features; those of senders that do not exist are 0.
        shift: receiver i reads the senders up to i + shift; None where it reads all.
        before: z (B, H, m, 1), the sum over earlier senders, or None.
    """
    if not isinstance(weights, Kernel) or not weights.phi.running:
        return q

    def sums(count: int) -> Tensor:
        x = k[..., :count]
        if shift is None:
            total = x.sum(2, keepdim=True)
        else:
            at = torch.arange(q.shape[2], device=q.device) + shift
            total = x.cumsum(2)[:, :, at.clamp(max=x.shape[2] - 1)] if x.shape[2] else x
        return total if before is None else total + before.mT[..., :count]

    return weights.phi.recentred(q, sums)
