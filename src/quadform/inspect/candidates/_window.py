"""Softmax attention inside a window, with or without sinks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quadform.inspect import _mixers
from quadform.inspect._block import SINKS, Block
from quadform.inspect._captured import Captured
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect.candidates._candidate import Unfitted, every_pair, no_offsets


@dataclass(frozen=True)
class Window(Unfitted):
    """Softmax attention renormalised on +-size/2 keys, or for causal heads on the last `size`; sinks optional.

    On an image: a square of side x side cells.
    """

    size: int = 32
    sinks: bool = False
    side: int = 7

    @property
    def name(self) -> str:
        return f"window-{self.size}" + ("+sinks" if self.sinks else "")

    @property
    def letter(self) -> str:
        return "S" if self.sinks else "W"

    @property
    def kind(self) -> str:
        return "window + sinks" if self.sinks else "window"

    @property
    def description(self) -> str:
        own = f"softmax over ±{self.size // 2} tokens (causal heads: the last {self.size}; images: {self.side} x {self.side})"
        sinks = (
            f"the first token and the last one (causal heads: the first {SINKS[True][0]}; images: class and registers)"
        )
        return f"{own} and {sinks}" if self.sinks else own

    def refusal(self, captured: Captured) -> str | None:
        if captured.cross:
            return no_offsets(captured)
        sides = zip(self.reach(captured), captured.place.sizes, strict=True)
        whole = all(max(reach) >= size - 1 for reach, size in sides)
        return every_pair(captured.k.shape[2], captured.k.shape[2]) if whole else None

    def reach(self, captured: Captured) -> tuple[tuple[int, int], ...]:
        """In each dimension of the grid: cells before and after the query."""
        if captured.place.dims > 1:
            return ((self.side // 2, self.side // 2),) * captured.place.dims
        return ((self.size - 1, 0),) if captured.causal else ((self.size // 2, self.size // 2),)

    def edges(self, block: Block) -> Tensor:
        """(B or 1, 1, R, M): the pairs of the window and of its sinks, the mask left out."""
        edges = block.within(self.reach(block.captured))[None, None]
        return edges | block.sinks if self.sinks else edges

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        return block.attend(self.edges(block))

    def mixer(self, shape: Shape) -> Mixer | None:
        return _mixers.window(shape, self.size, self.side, self.sinks)


NEAR = Window()
"""The window that the structure statistics speak of."""
