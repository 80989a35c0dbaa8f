"""Weights that depend on j - i only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.inspect import _mixers
from quadform.inspect._block import Block
from quadform.inspect._captured import Captured
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect._sums import Sums
from quadform.inspect.candidates._candidate import no_offsets


@dataclass(frozen=True)
class Convolution:
    """y_i = sum over offsets o of w_o v_{i+o}: weights of the head that no input changes; keys out of sight count 0.

    w minimises the squared error over the fitting sequences, with a ridge of 1e-6 times the mean diagonal.
    Centred for bidirectional heads, the last `width` keys for causal ones, a square on an image.
    """

    width: int = 15
    side: int = 5
    letter: str = "C"
    kind: str = "convolution"
    oracle: bool = False

    @property
    def name(self) -> str:
        return f"convolution-{self.width}"

    @property
    def description(self) -> str:
        return (
            f"convolution: {self.width} weights per head (images: {self.side} x {self.side}) that no input changes, by "
            "least squares on the fitting inputs"
        )

    def refusal(self, captured: Captured) -> str | None:
        return no_offsets(captured)

    def fitter(self) -> _LeastSquares:
        return _LeastSquares(self)

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        assert fitted is not None
        return torch.einsum("ht,bhrte->bhre", fitted.to(block.v.dtype), self.taps(block))

    def mixer(self, shape: Shape) -> Mixer | None:
        return _mixers.convolution(shape, self.width, self.side)

    def offsets(self, captured: Captured) -> Tensor:
        """(T, dims): the offsets of the taps."""
        dims = captured.place.dims
        width = self.width if dims == 1 else self.side
        first = 1 - width if captured.causal else -(width // 2)
        axis = torch.arange(first, first + width, device=captured.q.device)
        return torch.cartesian_prod(*[axis] * dims).view(-1, dims)

    def taps(self, block: Block) -> Tensor:
        """(B, H, R, T, E): v at each tap, 0 where the receiver may not see it."""
        place, device = block.captured.place, block.v.device
        cells, placed = place.cells(block.rows, device)
        where = cells[:, None] + self.offsets(block.captured)
        sizes = torch.tensor(place.sizes, device=device)
        inside = ((where >= 0) & (where < sizes)).all(-1) & placed[:, None]
        senders = torch.zeros_like(where[..., 0])
        for at, size in enumerate(place.sizes):
            senders = senders * size + where[..., at]
        senders = (senders + place.special).masked_fill(~inside, 0)
        seen = block.keep.gather(-1, senders.expand(*block.keep.shape[:2], -1, -1)) & inside
        return block.v[:, :, senders].masked_fill(~seen[..., None], 0.0)


class _LeastSquares:
    def __init__(self, candidate: Convolution) -> None:
        self._candidate, self._sums = candidate, Sums()

    def add(self, block: Block) -> None:
        taps = block.measured(self._candidate.taps(block))
        heads, count = taps.shape[1], taps.shape[3]
        flat = taps.movedim(1, 0).transpose(-1, -2).reshape(heads, -1, count)
        target = block.output.movedim(1, 0).reshape(heads, -1, 1)
        self._sums.add({"gram": flat.transpose(-1, -2) @ flat, "moment": flat.transpose(-1, -2) @ target})

    def fitted(self) -> Tensor:
        gram, moment = self._sums.values["gram"], self._sums.values["moment"]
        ridge = 1e-6 * gram.diagonal(dim1=-2, dim2=-1).mean(-1) + torch.finfo(gram.dtype).tiny
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        weights: Tensor = torch.linalg.solve(gram + ridge[:, None, None] * eye, moment)
        return weights[..., 0]
