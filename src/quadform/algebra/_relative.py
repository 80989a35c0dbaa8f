"""Relative scores: what a softmax adds to q'k, as a function of the offset delta = pos(j) - pos(i) or of the pair."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._description import Checks, Description, description
from quadform.algebra._operands import Operands, TensorSpec
from quadform.algebra._views import View

Radius = int | tuple[int, ...]


class Bias(Description):
    """Base of all additive scores."""

    per_edge = False
    relative = True  # a function of the offset alone

    def specs(self) -> tuple[TensorSpec, ...]:
        """The tensors that the call passes."""
        return ()

    def at(self, offset: Tensor, operands: Operands) -> Tensor:
        """Scores (..., H-leading broadcast) of offsets (Bp, 1, *pairs, g): (Bp, H, *pairs)."""
        raise NotImplementedError(f"{type(self).__name__} is not relative")

    def scores(self, view: View, operands: Operands) -> Tensor:
        return self.at(view.offset, operands)


@description
@dataclass(frozen=True)
class Table(Bias):
    """A learned score for each offset -left <= delta <= right (one pair of bounds a dimension); the ends extend outwards.

    Tensor `table` (H or 1, left_1 + right_1 + 1, ...).

    Reference (one dimension):

        score[i, j] = table[h, (j - i).clamp(-left, right) + left]
    """

    left: Radius
    right: Radius

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            value = getattr(self, name)
            value = tuple(value) if isinstance(value, list) else value
            object.__setattr__(self, name, value)
            if any(isinstance(r, bool) or not isinstance(r, int) or r < 0 for r in _tuple(value)):
                raise ArgumentError(f"Table.{name}", "a count of at least 0, or one a dimension", repr(value))
        if len(_tuple(self.left)) != len(_tuple(self.right)):
            raise ArgumentError("Table.right", "as many dimensions as left", repr(self.right))

    def specs(self) -> tuple[TensorSpec, ...]:
        sizes = [str(a + b + 1) for a, b in zip(_tuple(self.left), _tuple(self.right), strict=True)]
        return (TensorSpec("table", ("H", *sizes), "score of each relative offset"),)

    def at(self, offset: Tensor, operands: Operands) -> Tensor:
        left, right = _tuple(self.left), _tuple(self.right)
        if offset.shape[-1] != len(left):
            raise ArgumentError("Table.left", f"{offset.shape[-1]} dimensions, as the grid has", repr(self.left))
        index = torch.zeros_like(offset[..., 0])
        for d, (a, b) in enumerate(zip(left, right, strict=True)):
            index = index * (a + b + 1) + offset[..., d].clamp(-a, b) + a
        table = operands.named("table").flatten(1)
        return table[:, index[:, 0]].movedim(0, 1)


@description
@dataclass(frozen=True)
class Quadratic(Bias):
    """A Gaussian around a centre: -alpha |delta - c|^2, or -(delta - c)' P (delta - c) / 2 when general.

    The peak is 0, so large alpha stay exact; squared distances are formed from integer offsets.
    Tensors: `centre` (H, g) and `alpha` (H,), or `centre` and `precision` (H, g, g). g is the number of grid dimensions.
    Source: Cordonnier et al. 2020, "On the relationship between self-attention and convolutional layers".

    Reference:

        score = -alpha * ((delta - centre) ** 2).sum(-1)
    """

    general: bool = False

    def __post_init__(self) -> None:
        Checks.choice(self, "general", (True, False))

    def specs(self) -> tuple[TensorSpec, ...]:
        centre = TensorSpec("centre", ("H", "G"), "offset of the highest score")
        if self.general:
            return centre, TensorSpec("precision", ("H", "G", "G"), "inverse covariance")
        return centre, TensorSpec("alpha", ("H",), "inverse width")

    def at(self, offset: Tensor, operands: Operands) -> Tensor:
        centre = operands.named("centre")
        pairs = offset.dim() - 3

        def by_head(x: Tensor) -> Tensor:
            return x.reshape(1, x.shape[0], *([1] * pairs), *x.shape[1:])

        d = offset.to(centre.dtype) - by_head(centre)
        if self.general:
            precision = by_head(operands.named("precision"))
            return -0.5 * (d[..., None, :] @ precision @ d[..., :, None])[..., 0, 0]
        return -by_head(operands.named("alpha")) * (d * d).sum(-1)


@description
@dataclass(frozen=True)
class Alibi(Bias):
    """-slope |delta|, in one dimension. Tensor `slopes` (H,). Source: Press et al. 2022, "Train short, test long".

    Reference:

        score = -slopes[h] * (j - i).abs()
    """

    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("slopes", ("H",), "decay of the score per position"),)

    def at(self, offset: Tensor, operands: Operands) -> Tensor:
        if offset.shape[-1] != 1:
            raise ArgumentError("grid", "one dimension for Alibi", f"{offset.shape[-1]} dimensions")
        slopes = operands.named("slopes")
        distance = offset[..., 0].abs().to(slopes.dtype)
        return -slopes.view(1, -1, *([1] * (distance.dim() - 2))) * distance


@description
@dataclass(frozen=True)
class T5Buckets(Bias):
    """T5's logarithmic buckets: exact offsets near, one bucket for a growing range further away, clipped at max_distance.

    Tensor `table` (H, num_buckets). Source: Raffel et al. 2020, "Exploring the limits of transfer learning".

    Reference:

        score = table[h, bucket(j - i)]
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        Checks.integer(self, "num_buckets", 4)
        Checks.integer(self, "max_distance", 1)
        Checks.choice(self, "bidirectional", (True, False))
        Checks.number(self, "max_distance", lambda m: m > self._exact, f"more than {self._exact}, the exact offsets")

    @property
    def _exact(self) -> int:
        return (self.num_buckets // 2 if self.bidirectional else self.num_buckets) // 2

    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("table", ("H", str(self.num_buckets)), "score of each bucket"),)

    def bucket(self, delta: Tensor) -> Tensor:
        """Bucket number of each offset."""
        half = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        distance = delta.abs() if self.bidirectional else (-delta).clamp(min=0)
        ratio = distance.clamp(min=1).to(torch.float32) / self._exact
        steps = (torch.log(ratio) / math.log(self.max_distance / self._exact) * (half - self._exact)).to(torch.int64)
        far = (self._exact + steps).clamp(max=half - 1)
        return torch.where(distance < self._exact, distance, far) + (half * (delta > 0) if self.bidirectional else 0)

    def at(self, offset: Tensor, operands: Operands) -> Tensor:
        if offset.shape[-1] != 1:
            raise ArgumentError("grid", "one dimension for T5Buckets", f"{offset.shape[-1]} dimensions")
        return operands.named("table")[:, self.bucket(offset[:, 0, ..., 0])].movedim(0, 1)


@description
@dataclass(frozen=True)
class PairBias(Bias):
    """Any score of the pair (i, j). Tensor `bias` (B or 1, H or 1, Q, K).

    Reference:

        score = bias[b, h, i, j]
    """

    relative = False

    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("bias", ("B", "H", "Q", "K"), "score of each pair"),)

    def scores(self, view: View, operands: Operands) -> Tensor:
        return view.pair(operands.named("bias"))


@description
@dataclass(frozen=True)
class EdgeBias(Bias):
    """A score of each edge of a Graph, in the order of its edge_index. Tensor `bias` (B or 1, H or 1, E).

    Reference:

        score = bias[b, h, e]
    """

    per_edge = True
    relative = False

    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("bias", ("B", "H", "E"), "score of each edge"),)

    def scores(self, view: View, operands: Operands) -> Tensor:
        return view.edge(operands.named("bias"))


def _tuple(value: Radius) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)
