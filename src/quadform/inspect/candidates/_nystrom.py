"""Attention through a few landmarks (Xiong et al. 2021, Nystromformer)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.inspect import _mixers
from quadform.inspect._block import Block
from quadform.inspect._captured import Captured
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect.candidates._candidate import Unfitted, every_pair
from quadform.inspect.candidates._kernel import not_q_k_alone

CUTOFF = 1e-3
"""Singular values below this share of the largest count as 0 in the pseudo-inverse, which else blows up."""


@dataclass(frozen=True)
class Nystrom(Unfitted):
    """softmax(q K') pinv(softmax(Q K')) softmax(Q k') v with Q, K the means of q and k over `landmarks` segments."""

    landmarks: int = 16
    letter: str = "N"
    kind: str = "low rank"

    @property
    def name(self) -> str:
        return f"nystrom-{self.landmarks}"

    @property
    def description(self) -> str:
        return f"low rank through {self.landmarks} landmarks, the means of as many segments (Nyström); bidirectional heads only"

    def refusal(self, captured: Captured) -> str | None:
        if captured.causal:
            return "landmarks would look ahead"
        if captured.structured:
            return "the mask holds more than padding"
        return not_q_k_alone(captured) or every_pair(self.landmarks, min(captured.q.shape[2], captured.k.shape[2]))

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        scaling = block.captured.scaling
        keys = block.once("landmark keys", lambda: self._means(block.k, block.captured.seen))
        context = block.once("landmark context", lambda: self._context(block, keys))
        return (block.q @ keys.transpose(-1, -2) * scaling).softmax(-1) @ context

    def mixer(self, shape: Shape) -> Mixer | None:
        return _mixers.nystrom(shape, self.landmarks)

    def _context(self, block: Block, keys: Tensor) -> Tensor:
        """(B, H, m, E): pinv(softmax(Q K')) softmax(Q k') v."""
        captured = block.captured
        queries = captured.seen if captured.queries is None and not captured.cross else captured.queries
        whole = captured.q.to(block.q.dtype)
        if queries is None:
            queries = torch.ones(whole.shape[0], whole.shape[2], dtype=torch.bool, device=whole.device)
        means = self._means(whole, queries)
        inner = (means @ keys.transpose(-1, -2) * captured.scaling).softmax(-1)
        scores = (means @ block.k.transpose(-1, -2) * captured.scaling).masked_fill(
            ~captured.seen[:, None, None], -torch.inf
        )
        return torch.linalg.pinv(inner.double(), rtol=CUTOFF).to(inner.dtype) @ (
            scores.softmax(-1).nan_to_num() @ block.v
        )

    def _means(self, values: Tensor, valid: Tensor) -> Tensor:
        """(B, H, m, D): means of (B, H, N, D) over m segments of the valid tokens."""
        count, rank = valid.sum(-1, keepdim=True).clamp(min=1), valid.cumsum(-1) - 1
        segments = (rank * self.landmarks // count).clamp(0, self.landmarks - 1)
        members = (segments[:, None] == torch.arange(self.landmarks, device=valid.device)[:, None]) & valid[:, None]
        weights = members.to(values.dtype)
        return (weights / weights.sum(-1, keepdim=True).clamp(min=1))[:, None] @ values
