"""The factor of q'k, of which queries and keys take the root each."""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor

from quadform.algebra._description import Checks


class Scaled(Protocol):
    """A map with a scale of q'k."""

    @property
    def scale(self) -> float | None: ...


def check_scale(owner: Scaled) -> None:
    """Errors: ArgumentError where the scale is neither None nor positive."""
    if owner.scale is not None:
        Checks.number(owner, "scale", lambda s: 0 < s < math.inf, "a positive number or None")


def rooted(owner: Scaled, x: Tensor) -> Tensor:
    """x sqrt(scale): products of two of these are scale q'k, with scale D^-0.5 unless given."""
    return x * (max(x.shape[-1], 1) ** -0.25 if owner.scale is None else math.sqrt(owner.scale))
