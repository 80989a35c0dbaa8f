"""Softmax attention over each query's strongest keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.inspect import _mixers
from quadform.inspect._block import Block
from quadform.inspect._captured import Captured
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect.candidates._candidate import Unfitted, every_pair


@dataclass(frozen=True)
class TopK(Unfitted):
    """Softmax attention renormalised on each query's `k` largest scores: an oracle, since it needs all scores."""

    k: int = 16
    letter: str = "T"
    kind: str = "top-k"
    oracle = True

    @property
    def name(self) -> str:
        return f"top-{self.k}"

    @property
    def description(self) -> str:
        return f"softmax over each token's {self.k} strongest edges (an oracle: finding them needs all the scores)"

    def refusal(self, captured: Captured) -> str | None:
        return every_pair(self.k, captured.k.shape[2])

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        visible = block.scores.masked_fill(~block.keep, -torch.inf)
        strongest = visible.topk(min(self.k, visible.shape[-1]), dim=-1).indices
        edges = torch.zeros_like(visible, dtype=torch.bool).scatter_(-1, strongest, True)
        return block.attend(edges)

    def mixer(self, shape: Shape) -> Mixer | None:
        return _mixers.top_k(shape, self.k)
