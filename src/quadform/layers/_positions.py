"""Where the tokens of a call stand in their rows."""

from __future__ import annotations

import torch
from torch import Tensor


def positions_of(x: Tensor, lengths: Tensor | None, key_mask: Tensor | None, before: Tensor | None) -> Tensor:
    """(N,) or (B, N) int64 positions of tokens x (B, N, E), `before` (B,) positions after the start.

    A row's leading padding stands before its position 0, so padding on either side gives the positions of the shorter
    sequence. Padding leads only in a row that has seen nothing.
    """
    batch, n = x.shape[:2]
    index = torch.arange(n, device=x.device)
    if key_mask is None or not n:
        return index if before is None else before[:, None] + index
    end = torch.full((batch, 1), n, device=x.device) if lengths is None else lengths.to(x.device)[:, None]
    lead = torch.where(key_mask, index, end).amin(-1, keepdim=True).minimum(end)
    if before is None:
        return index - lead
    return before[:, None] + index - torch.where(before[:, None] == 0, lead, 0)
