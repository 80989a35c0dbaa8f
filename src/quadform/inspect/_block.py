"""A few query rows of a captured call: the unit in which everything is measured.

Attention weights are only ever held for one block, so memory stays at about `ELEMENTS` numbers per intermediate
tensor however long the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from quadform.inspect._captured import Captured

ELEMENTS = 2**19
SINKS = {True: (4, 0), False: (1, 1)}
"""How many first and last tokens count as sinks, for causal heads and for bidirectional ones."""


class Block:
    """Query rows first .. first + R - 1 of a captured call, in float32 at least.

    Attributes:
        captured: the call.
        rows: which query rows.
        q: (B, H, R, D).
        k, v: (B, H, M, D) and (B, H, M, E), repeated for grouped-query heads.
        keep: (B, 1 or H, R, M).
        valid: (B, R), the rows that are measured.
        sinks: (B, 1, 1, M): the special tokens of a grid that has some, else the first token(s) and, for bidirectional
            heads, the last one.
        causal: whether the head never looks ahead.
        shared: what forms compute once for all blocks of the call, by name.
    """

    def __init__(self, captured: Captured, first: int, count: int, shared: dict[str, Tensor] | None = None) -> None:
        dtype = torch.promote_types(captured.q.dtype, torch.float32)
        self.captured, self.first, self.causal = captured, first, captured.causal
        self.shared: dict[str, Tensor] = {} if shared is None else shared
        self.rows = slice(first, first + count)
        self.q = captured.q[:, :, self.rows].to(dtype)
        self.k = self.once("k", lambda: captured.k.to(dtype).repeat_interleave(self._groups, 1))
        self.v = self.once("v", lambda: captured.v.to(dtype).repeat_interleave(self._groups, 1))
        self.keep = captured.keep[:, :, self.rows]
        self.valid = captured.valid[:, self.rows]
        self.given = captured.output[:, :, self.rows].to(dtype)
        self.sinks = self.once("sinks", lambda: sinks(captured)[:, None, None])
        self._all_valid = bool(self.valid.all())

    @property
    def _groups(self) -> int:
        return self.captured.q.shape[1] // self.captured.k.shape[1]

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """`compute()`, or what it gave in an earlier block of the same call."""
        if name not in self.shared:
            self.shared[name] = compute()
        return self.shared[name]

    @cached_property
    def dots(self) -> Tensor:
        """(B, H, R, M): scaling q_i'k_j."""
        return self.q @ self.k.transpose(-1, -2) * self.captured.scaling

    @cached_property
    def scores(self) -> Tensor:
        """(B, H, R, M): the scores, also where the mask forbids them."""
        scores = self.dots
        if self.captured.softcap is not None:
            scores = self.captured.softcap * (scores / self.captured.softcap).tanh()
        if self.captured.bias is not None:
            scores = scores + self.captured.bias[:, :, self.rows].to(scores.dtype)
        return scores

    @cached_property
    def weights(self) -> Tensor:
        """(B, H, R, M): A."""
        return self.softmax(self.keep)

    @cached_property
    def output(self) -> Tensor:
        """(B, H, R, E): A v."""
        return self.weights @ self.v

    def softmax(self, keep: Tensor) -> Tensor:
        """The weights over the pairs in `keep` alone, renormalised together with the learned sink; empty rows are 0."""
        scores = self.scores.masked_fill(~keep, -torch.inf)
        if self.captured.sink is None:
            return scores.softmax(-1).masked_fill(~keep.any(-1, keepdim=True), 0.0)
        column = self.captured.sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1]

    def attend(self, edges: Tensor) -> Tensor:
        """(B, H, R, E): the head's own attention over the kept edges only, renormalised."""
        return self.softmax(edges & self.keep) @ self.v

    def within(self, reach: tuple[tuple[int, int], ...]) -> Tensor:
        """(R, M): keys within the reach of the query in every dimension of the grid."""
        return self.captured.place.within(self.rows, reach, self.q.device)

    def measured(self, values: Tensor) -> Tensor:
        """Values (B, H, R, ...) with the rows that are not measured set to 0."""
        if self._all_valid:
            return values
        batch, rows = self.valid.shape
        valid = self.valid.view(batch, 1, rows, *[1] * (values.ndim - 3))
        return values.masked_fill(~valid, 0.0)


def blocks(captured: Captured) -> Iterator[Block]:
    """All query rows of a call, in blocks of about `ELEMENTS` attention weights."""
    batch, heads, n, _ = captured.q.shape
    count = max(1, min(n, ELEMENTS // max(1, batch * heads * captured.k.shape[2])))
    shared: dict[str, Tensor] = {}
    for first in range(0, n, count):
        yield Block(captured, first, count, shared)


def sinks(captured: Captured) -> Tensor:
    """(B, M): the keys that count as sinks."""
    special = captured.place.special
    if special:
        return captured.seen & (torch.arange(captured.k.shape[2], device=captured.q.device) < special)
    first, last = SINKS[captured.causal]
    rank, back = captured.seen.cumsum(-1), captured.seen.flip(-1).cumsum(-1).flip(-1)
    return captured.seen & ((rank <= first) | (back <= last))
