"""The baseline: every token receives the mean of v."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quadform.inspect import _mixers
from quadform.inspect._block import Block
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect.candidates._candidate import Unfitted


@dataclass(frozen=True)
class Mean(Unfitted):
    """y_i = mean of v_j over the keys that i may see."""

    name: str = "mean"
    letter: str = "M"
    kind: str = "mean"
    description: str = "baseline: the mean of v over the keys that the head may see"

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        keep = block.keep.to(block.v.dtype)
        return keep @ block.v / keep.sum(-1, keepdim=True).clamp(min=1)

    def mixer(self, shape: Shape) -> Mixer | None:
        return _mixers.mean(shape)
