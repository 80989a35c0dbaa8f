"""Products of entries of a vector, each once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FEW = 512  # rows below which one gather is faster than many slices


def suffix_products(x: Tensor, y: Tensor, starts: Sequence[int]) -> Tensor:
    """x_i y_j for all i and all j >= starts[i], in that order: x (..., n) and y (..., m) to (..., sum of m - starts[i]).

    Reference:

        out = torch.cat([x[..., i : i + 1] * y[..., start:] for i, start in enumerate(starts)], -1)
    """
    if starts and x.device.type == "cpu" and x.shape[:-1].numel() >= FEW:
        return torch.cat([x[..., i : i + 1] * y[..., start:] for i, start in enumerate(starts)], -1)
    wanted = torch.arange(y.shape[-1]) >= torch.tensor(starts)[:, None]
    index = wanted.flatten().nonzero()[:, 0].to(x.device)
    return (x[..., :, None] * y[..., None, :]).flatten(-2).index_select(-1, index)
