"""A few query rows of a captured call: the unit in which everything is measured.

Attention weights are only ever held for one block, so memory stays at about `ELEMENTS` numbers per intermediate
tensor however long the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from quadform.inspect._captured import Captured

ELEMENTS = 2**19
SINKS = {True: (4, 0), False: (1, 1)}
"""How many first and last tokens count as sinks, for causal heads and for bidirectional ones."""


def masked_softmax(scores: Tensor, keep: Tensor) -> Tensor:
    """exp(s_ij) / sum over kept j of exp(s_ij); a row that keeps nothing is 0."""
    weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
    return weights.masked_fill(~keep.any(-1, keepdim=True), 0.0)


class Block:
    """Query rows first .. first + R - 1 of a captured call, in float32 at least.

    Attributes:
        q: (B, H, R, D).
        k, v: (B, H, N, D) and (B, H, N, E), repeated for grouped-query heads.
        keep: (B, 1 or H, R, N).
        valid: (B, R), the rows that are no padding.
        offsets: (R, N), j - i.
        sinks: (B, 1, 1, N), the first token(s) and, for bidirectional heads, the last one.
        causal: whether the head never looks ahead.
    """

    def __init__(self, captured: Captured, first: int, count: int) -> None:
        dtype = torch.promote_types(captured.q.dtype, torch.float32)
        groups = captured.q.shape[1] // captured.k.shape[1]
        rows = slice(first, first + count)
        self.first, self.causal, self.scaling = first, captured.causal, captured.scaling
        self.q = captured.q[:, :, rows].to(dtype)
        self.k = captured.k.to(dtype).repeat_interleave(groups, 1)
        self.v = captured.v.to(dtype).repeat_interleave(groups, 1)
        self.keep = captured.keep[:, :, rows]
        self.valid = captured.valid[:, rows]
        self.unpadded = bool(self.valid.all())
        self.given = captured.output[:, :, rows].to(dtype)
        positions = torch.arange(captured.k.shape[2], device=self.q.device)
        self.offsets = positions - positions[rows, None]
        self.sinks = _sinks(captured.valid, captured.causal)[:, None, None]

    @cached_property
    def scores(self) -> Tensor:
        """(B, H, R, N): scaling * q_i'k_j, also where the mask forbids it."""
        return self.q @ self.k.transpose(-1, -2) * self.scaling

    @cached_property
    def weights(self) -> Tensor:
        """(B, H, R, N): A."""
        return masked_softmax(self.scores, self.keep)

    @cached_property
    def output(self) -> Tensor:
        """(B, H, R, E): A v."""
        return self.weights @ self.v

    def attend(self, edges: Tensor) -> Tensor:
        """(B, H, R, E): softmax attention over the kept edges only, renormalised."""
        return masked_softmax(self.scores, edges & self.keep) @ self.v

    def window(self, left: int, right: int) -> Tensor:
        """(R, N): keys at most `left` before and `right` after the query."""
        return (self.offsets >= -left) & (self.offsets <= right)

    def rows(self, values: Tensor) -> Tensor:
        """Values (B, H, R, ...) with the padded rows set to 0."""
        if self.unpadded:
            return values
        batch, rows = self.valid.shape
        valid = self.valid.view(batch, 1, rows, *[1] * (values.ndim - 3))
        return values.masked_fill(~valid, 0.0)


def blocks(captured: Captured) -> Iterator[Block]:
    """All query rows of a call, in blocks of about `ELEMENTS` attention weights."""
    batch, heads, n, _ = captured.q.shape
    count = max(1, min(n, ELEMENTS // max(1, batch * heads * n)))
    for first in range(0, n, count):
        yield Block(captured, first, count)


def _sinks(valid: Tensor, causal: bool) -> Tensor:
    """(B, N): the first and last valid tokens that count as sinks."""
    first, last = SINKS[causal]
    rank, back = valid.cumsum(-1), valid.flip(-1).cumsum(-1).flip(-1)
    return valid & ((rank <= first) | (back <= last))
