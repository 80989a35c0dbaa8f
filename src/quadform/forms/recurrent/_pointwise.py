"""Feature maps that act on each number alone: the chunked kernel applies them itself, so their values are never stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from quadform.algebra import Elu1, FeatureMap, Relu


@dataclass(frozen=True)
class Pointwise:
    """phi(x), and phi'(x) as a function of phi(x)."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


def pointwise(phi: FeatureMap) -> Pointwise | None:
    """The map as a function of single numbers; None where it is none, or not known to be one."""
    slope = SLOPES.get(type(phi))
    return None if slope is None else Pointwise(phi, slope)


SLOPES: dict[type[FeatureMap], Callable[[Tensor], Tensor]] = {
    Elu1: lambda y: y.clamp(max=1),  # exp(x) for x <= 0, else 1
    Relu: lambda y: (y > 0).to(y.dtype),
}
