"""Exact attention near, one feature of the key far away."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from quadform.inspect import _mixers
from quadform.inspect._block import Block
from quadform.inspect._captured import Captured
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect._sums import Sums
from quadform.inspect.candidates._window import Window

LEVELS = torch.linspace(-12.0, 12.0, 49, dtype=torch.float64)
"""The far levels c that a fit chooses between, by linear interpolation."""

LARGEST = 60.0
"""Bound of the far scores, so that their exponential is finite in float32."""


@dataclass(frozen=True)
class Hybrid:
    """Softmax scores in a window and on its sinks, exp(c + a'k_j - b) everywhere else, one normaliser for both.

    a is the mean query of the first fitting sequence, b the mean of a'k there, and c makes the far keys' share of the
    weight right on average over the fitting inputs: a kernel of one feature, which a stream carries as one vector.
    """

    window: Window = field(default_factory=lambda: Window(sinks=True))
    letter: str = "H"
    kind: str = "hybrid"
    oracle: bool = False

    @property
    def name(self) -> str:
        return f"hybrid-{self.window.size}"

    @property
    def description(self) -> str:
        return f"{self.window.name}, and all other keys by one fitted feature (the mean query's preference), one normaliser"

    def refusal(self, captured: Captured) -> str | None:
        return self.window.refusal(captured)

    def fitter(self) -> _FarLevel:
        return _FarLevel(self.window)

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        assert fitted is not None
        level = fitted[:, -1]
        near, far, gain, top = parts(block, self.window, fitted[:, :-1])
        scale = (level.view(1, -1, 1, 1) - top).exp().to(near.dtype)  # exp(c - m)
        weights = near + scale * gain.masked_fill(~far, 0.0)
        total = weights.sum(-1, keepdim=True) + _sink(block, top)
        return weights / total.clamp(min=torch.finfo(total.dtype).tiny) @ block.v

    def mixer(self, shape: Shape) -> Mixer | None:
        return _mixers.hybrid(shape, self.window.size, self.window.side)


def parts(block: Block, window: Window, feature: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(exp(s - m) on near pairs, which pairs are far, exp(a'k_j - b), m): (B, H, R, M) each, m (B, H, R, 1).

    `feature` (H, D + 1) holds a, scaled, and b.
    """
    edges = window.edges(block)
    near = block.keep & edges
    scores = block.scores.masked_fill(~near, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)
    query, centre = feature.to(block.k.dtype)[:, None].split([feature.shape[-1] - 1, 1], -1)
    gain = query @ block.k.transpose(-1, -2) - centre
    return (scores - top).exp(), block.keep & ~edges, gain.clamp(max=LARGEST).exp(), top


def _sink(block: Block, top: Tensor) -> Tensor | float:
    if block.captured.sink is None:
        return 0.0
    return (block.captured.sink.to(top.dtype).view(1, -1, 1, 1) - top).exp()


class _FarLevel:
    """(H, D + 2): the mean query a times the scaling, b and c."""

    def __init__(self, window: Window) -> None:
        self._window, self._sums = window, Sums()
        self._feature: Tensor | None = None

    def add(self, block: Block) -> None:
        if self._feature is None:
            self._feature = _feature(block)
        near, far, gain, top = parts(block, self._window, self._feature)
        exact = (near.sum(-1, keepdim=True) + _sink(block, top)).double()
        beyond = gain.masked_fill(~far, 0.0).sum(-1, keepdim=True).double()
        level = (LEVELS.to(top.device) - top).exp() * beyond  # (B, H, R, levels)
        share = block.measured(level / (exact + level).clamp(min=1e-300))
        true = block.measured(block.weights.masked_fill(~far, 0.0).sum(-1))
        self._sums.add({"share": share.sum((0, 2)), "true": true.sum((0, 2))})

    def fitted(self) -> Tensor:
        assert self._feature is not None
        share, true = self._sums.values["share"].contiguous(), self._sums.values["true"][:, None]
        levels = LEVELS.to(share.device)
        at = torch.searchsorted(share, true).clamp(1, len(LEVELS) - 1)
        low, high = share.gather(-1, at - 1), share.gather(-1, at)
        part = ((true - low) / (high - low).clamp(min=1e-300)).clamp(0.0, 1.0)
        level = levels[at - 1] + part * (levels[at] - levels[at - 1])
        level = level.masked_fill(true <= share[:, :1], -torch.inf)  # so little beyond the window that it is left out
        return torch.cat([self._feature, level], -1)


def _feature(block: Block) -> Tensor:
    captured = block.captured
    valid, seen = captured.valid[0, :, None], captured.seen[0, :, None]
    query = captured.scaling * (captured.q[0] * valid).double().sum(1) / valid.sum().clamp(min=1)
    key = (block.k[0] * seen).double().sum(1) / seen.sum().clamp(min=1)
    return torch.cat([query, (query * key).sum(-1, keepdim=True)], -1)
