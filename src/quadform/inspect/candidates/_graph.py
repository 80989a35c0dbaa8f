"""Softmax attention over edges that no input changes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform._errors import QuadformError
from quadform.inspect import _mixers
from quadform.inspect._block import Block
from quadform.inspect._captured import Captured
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect.candidates._candidate import Unfitted, every_pair

WHOLE = 512
"""Up to this many keys, the sums run over all pairs."""
POOL = 8
"""Beyond it, over so many times `k` senders of each receiver, so that memory does not grow with N^2."""


@dataclass(frozen=True)
class FixedGraph(Unfitted):
    """Softmax attention renormalised on the `k` senders of each position with the most weight on the fitting inputs.

    The sums run over all pairs up to 512 keys, and beyond over the 8 k senders of each position that had most weight in
    the first fitting sequence: O(N k) numbers for each head.
    """

    k: int = 16
    letter: str = "G"
    kind: str = "fixed graph"

    @property
    def name(self) -> str:
        return f"graph-{self.k}"

    @property
    def description(self) -> str:
        return f"softmax over {self.k} senders of each position that no input changes, found on the fitting inputs"

    def refusal(self, captured: Captured) -> str | None:
        return every_pair(self.k, captured.k.shape[2])

    def fitter(self) -> _MeanWeights:
        return _MeanWeights(self.k)

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        assert fitted is not None
        edges = torch.zeros(
            1, *fitted[:, block.rows].shape[:2], block.k.shape[2], dtype=torch.bool, device=block.k.device
        )
        return block.attend(edges.scatter_(-1, fitted[None, :, block.rows].long(), True))

    def mixer(self, shape: Shape) -> Mixer | None:
        return _mixers.graph(shape, self.k)


class _MeanWeights:
    def __init__(self, k: int) -> None:
        self._k = k
        self._first: Captured | None = None
        self._pool = self._sums = torch.empty(0)

    def add(self, block: Block) -> None:
        _, heads, n, _ = block.captured.q.shape
        m, rows = block.k.shape[2], block.rows
        weights = block.measured(block.weights)
        if self._first is None:
            self._first = block.captured
            size = (heads, n, m if m <= WHOLE else min(m, POOL * self._k))
            self._pool = torch.zeros(size, dtype=torch.int32, device=block.k.device)
            self._sums = torch.zeros(size, device=block.k.device)
            self._keys = m
        if (n, m) != (self._pool.shape[1], self._keys):
            raise QuadformError(
                f"{block.captured.module}: a fixed graph needs the same tokens in every call; {n} queries and {m} keys "
                f"came after {self._pool.shape[1]} and {self._keys}"
            )
        if block.captured is self._first:
            self._pool[:, rows] = weights[0].topk(self._pool.shape[-1], -1).indices.int()
        self._sums[:, rows] += weights.sum(0).gather(-1, self._pool[:, rows].long()).float()

    def fitted(self) -> Tensor:
        best = self._sums.topk(min(self._k, self._sums.shape[-1]), -1).indices
        return self._pool.gather(-1, best)
