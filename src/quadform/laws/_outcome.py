"""What a law found on one case, and how errors are measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@dataclass(frozen=True)
class Outcome:
    """One comparison.

    Attributes:
        law: the law's name. subject: mixer row, or what the law is about. form, dtype: by name.
        error: max|y - y*| / max|y*|, forward or for the gradients, whichever is larger.
        tolerance: the bound that the error must keep.
        witness: the input, in words.
    """

    law: str
    subject: str
    form: str
    dtype: str
    error: float
    tolerance: float
    witness: str

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # False for NaN

    @property
    def share(self) -> float:
        """The part of the tolerance that the error takes; infinite where one is not finite."""
        if math.isnan(self.error) or math.isnan(self.tolerance):
            return math.inf
        if self.tolerance == 0:
            return math.inf if self.error else 0.0
        return self.error / self.tolerance


def distance(y: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """max|y - y*| / max(max|y*|, floor), in float64; infinite where one is not finite or the shapes differ."""
    if y.shape != expected.shape:
        return math.inf
    if not y.numel():
        return 0.0
    y, expected = y.detach().double(), expected.detach().double()
    if not bool(y.isfinite().all()) or not bool(expected.isfinite().all()):
        return math.inf
    gap, size = float((y - expected).abs().max()), max(float(expected.abs().max()), floor)
    return gap if size == 0 else gap / size


def gradient_distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest `distance` over the inputs, each on the scale of its own gradient or of a share of the largest one.

    A gradient that cancels to 0 exactly, such as that of a constant score, has no scale of its own. The share is 1 (all
    gradients form one vector) but for float64, where rounding is far below the tolerance: there it is a thousandth.
    """
    largest = max((float(g.abs().max()) for g in expected.values() if g.numel()), default=0.0)
    exact = all(g.dtype == torch.float64 for g in found.values())
    return max(
        (distance(found[name], g, largest * (1e-3 if exact else 1)) for name, g in expected.items()), default=0.0
    )


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def rounding(dtype: torch.dtype) -> float:
    """Eight units in the last place: the same sum in another order."""
    return 8 * torch.finfo(dtype).eps
