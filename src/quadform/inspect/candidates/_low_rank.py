"""The best weights of low rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.inspect._block import Block
from quadform.inspect._captured import Captured
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect.candidates._candidate import Unfitted, every_pair

LONGEST = 1024
EXTRA, ROUNDS = 8, 4
"""Further directions and rounds of the subspace iteration, which leave it within about 1 % of the best error."""


@dataclass(frozen=True)
class LowRank(Unfitted):
    """U U'A v with U the leading `rank` left singular vectors of the weights A of each sequence: an oracle.

    U comes from subspace iteration (Halko, Martinsson and Tropp 2011) from a fixed start.
    """

    rank: int = 16
    letter: str = "R"
    kind: str = "low rank"
    oracle = True

    @property
    def name(self) -> str:
        return f"rank-{self.rank}"

    @property
    def description(self) -> str:
        return f"the weights' leading {self.rank} singular directions (an oracle: finding them needs all the weights)"

    def refusal(self, captured: Captured) -> str | None:
        longest = max(captured.q.shape[2], captured.k.shape[2])
        if longest > LONGEST:
            return f"it needs whole matrices, and {longest:,} tokens are more than {LONGEST:,}"
        return every_pair(self.rank, min(captured.q.shape[2], captured.k.shape[2]))

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        return block.once(self.name, lambda: self._project(block.captured))[:, :, block.rows]

    def mixer(self, shape: Shape) -> Mixer | None:
        return None

    def _project(self, captured: Captured) -> Tensor:
        """(B, H, N, E): U U'A v, one sequence after the other."""
        found = []
        for row in range(len(captured.q)):
            whole = Block(captured.sequence(row), 0, captured.q.shape[2])
            weights, output = whole.measured(whole.weights), whole.measured(whole.output)
            basis = self._basis(weights)
            found.append(basis @ (basis.transpose(-1, -2) @ output))
        return torch.cat(found) if found else torch.zeros_like(captured.output)

    def _basis(self, weights: Tensor) -> Tensor:
        """(1, H, N, rank): orthonormal columns."""
        width = min(self.rank + EXTRA, *weights.shape[-2:])
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(weights.shape[-1], width, generator=generator).to(weights)
        basis = torch.linalg.qr(weights @ start).Q
        for _ in range(ROUNDS):
            basis = torch.linalg.qr(weights @ (weights.transpose(-1, -2) @ basis)).Q
        inner = torch.linalg.svd(basis.transpose(-1, -2) @ weights, full_matrices=False).U
        return basis @ inner[..., : self.rank]
