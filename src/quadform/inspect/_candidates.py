"""The cheaper forms that a head is compared with: one small object each.

A candidate is any object with the attributes and methods of `Candidate`. Statistics that `observe` returns are summed
over all blocks of all fitting sequences in float64, which is what makes fitting a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quadform.inspect._block import SINKS, Block


class Candidate(Protocol):
    """A form that a head may be replaced by."""

    @property
    def name(self) -> str: ...

    @property
    def letter(self) -> str:
        """One capital, which marks the form on a map."""

    @property
    def description(self) -> str: ...

    @property
    def oracle(self) -> bool:
        """Whether it needs all the scores, so that it diagnoses but saves nothing."""

    def observe(self, block: Block) -> dict[str, Tensor]:
        """Statistics of a block of fitting data, to be added up; empty when there is nothing to fit."""

    def fit(self, sums: dict[str, Tensor]) -> Tensor | None:
        """Parameters, one row for each head, from the summed statistics."""

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        """(B, H, R, E): the form's output on the block's rows."""


class _Unfitted:
    oracle = False

    def observe(self, block: Block) -> dict[str, Tensor]:
        return {}

    def fit(self, sums: dict[str, Tensor]) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Mean(_Unfitted):
    """y_i = mean of v_j over the keys that i may see: the baseline."""

    name: str = "mean"
    letter: str = "M"
    description: str = "baseline: the mean of v over the keys that the head may see"

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        keep = block.keep.to(block.v.dtype)
        return keep @ block.v / keep.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Convolution:
    """y_i = sum over offsets o of w_o v_{i+o}: weights of the head that no input changes; keys out of sight count 0.

    w minimises the squared error over the fitting sequences, with a ridge of 1e-6 times the mean diagonal.
    Centred for bidirectional heads, the last `width` keys for causal ones.
    """

    width: int = 15
    letter: str = "C"
    oracle: bool = False

    @property
    def name(self) -> str:
        return f"convolution-{self.width}"

    @property
    def description(self) -> str:
        return f"convolution: {self.width} weights per head that no input changes, by least squares on the fitting text"

    def _taps(self, block: Block) -> Tensor:
        """(B, H, R, W, E): v_{i+o}, 0 where i may not see i + o."""
        reach = self.width - 1 if block.causal else self.width // 2
        taps = torch.arange(self.width, device=block.v.device) - reach
        rows = torch.arange(block.q.shape[2], device=block.v.device)[:, None]
        senders = block.first + rows + taps
        inside = (senders >= 0) & (senders < block.v.shape[2])
        senders = senders.clamp(0, block.v.shape[2] - 1)
        seen = block.keep.gather(-1, senders.expand(*block.keep.shape[:2], -1, -1)) & inside
        return block.v[:, :, senders].masked_fill(~seen[..., None], 0.0)

    def observe(self, block: Block) -> dict[str, Tensor]:
        taps = block.rows(self._taps(block))
        flat = taps.movedim(1, 0).transpose(-1, -2).reshape(taps.shape[1], -1, self.width)
        target = block.output.movedim(1, 0).reshape(taps.shape[1], -1, 1)
        return {"gram": flat.transpose(-1, -2) @ flat, "moment": flat.transpose(-1, -2) @ target}

    def fit(self, sums: dict[str, Tensor]) -> Tensor | None:
        gram, moment = sums["gram"], sums["moment"]
        ridge = 1e-6 * gram.diagonal(dim1=-2, dim2=-1).mean(-1) + torch.finfo(gram.dtype).tiny
        eye = torch.eye(self.width, dtype=gram.dtype, device=gram.device)
        weights: Tensor = torch.linalg.solve(gram + ridge[:, None, None] * eye, moment)
        return weights[..., 0]

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        assert fitted is not None
        return torch.einsum("hw,bhrwe->bhre", fitted.to(block.v.dtype), self._taps(block))


@dataclass(frozen=True)
class Window(_Unfitted):
    """Softmax attention renormalised on +-size/2 keys, or for causal heads on the last `size`; sinks optional."""

    size: int = 32
    sinks: bool = False

    @property
    def name(self) -> str:
        return f"window-{self.size}" + ("+sinks" if self.sinks else "")

    @property
    def letter(self) -> str:
        return "S" if self.sinks else "W"

    @property
    def description(self) -> str:
        own = f"softmax over ±{self.size // 2} tokens (causal heads: the last {self.size})"
        sinks = f"the first token and the last one (causal heads: the first {SINKS[True][0]})"
        return f"{own} and {sinks}" if self.sinks else own

    def reach(self, causal: bool) -> tuple[int, int]:
        """Keys to the left and to the right of the query."""
        return (self.size - 1, 0) if causal else (self.size // 2, self.size // 2)

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        edges = block.window(*self.reach(block.causal))
        return block.attend(edges | block.sinks if self.sinks else edges)


@dataclass(frozen=True)
class TopK(_Unfitted):
    """Softmax attention renormalised on each query's `k` largest scores: an oracle, since it needs all scores."""

    k: int = 16
    letter: str = "T"
    oracle = True

    @property
    def name(self) -> str:
        return f"top-{self.k}"

    @property
    def description(self) -> str:
        return f"softmax over each token's {self.k} strongest edges (an oracle: finding them needs all the scores)"

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        visible = block.scores.masked_fill(~block.keep, -torch.inf)
        strongest = visible.topk(min(self.k, visible.shape[-1]), dim=-1).indices
        edges = torch.zeros_like(visible, dtype=torch.bool).scatter_(-1, strongest, True)
        return block.attend(edges)


NEAR = Window()
"""The window that the structure statistics speak of."""

CANDIDATES: tuple[Candidate, ...] = (Mean(), Convolution(), NEAR, Window(sinks=True), TopK())
