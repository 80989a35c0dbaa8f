"""Feature maps phi with sim(q, k) = phi(q)'phi(k): the step from attention to recurrence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._description import Checks, Description, description


class FeatureMap(Description):
    """phi: (..., D) -> (..., m). A subclass states m, and whether every product of features is >= 0."""

    positive = True

    def features(self, head_dim: int) -> int:
        """m for a head of that dimension."""
        return head_dim

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


@description
@dataclass(frozen=True)
class Elu1(FeatureMap):
    """elu(x) + 1, written so that negative x keep their digits: x + 1 where x > 0, exp(x) elsewhere.

    m = D. Source: Katharopoulos et al. 2020.

    Reference:

        phi = torch.where(x > 0, x + 1, torch.exp(x))
    """

    def __call__(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


@description
@dataclass(frozen=True)
class Relu(FeatureMap):
    """max(x, 0). m = D. A row whose features are all orthogonal to the keys' has no weights and gives 0.

    Reference:

        phi = torch.relu(x)
    """

    def __call__(self, x: Tensor) -> Tensor:
        return torch.relu(x)


@description
@dataclass(frozen=True)
class Exp(FeatureMap):
    """exp(x), elementwise. m = D. Overflows float32 above x = 88.

    Reference:

        phi = torch.exp(x)
    """

    def __call__(self, x: Tensor) -> Tensor:
        return torch.exp(x)


@description
@dataclass(frozen=True)
class Taylor2(FeatureMap):
    """phi(q)'phi(k) = 1 + s + s^2 / 2 with s = scale q'k: the second-order Taylor polynomial of exp(s), always positive.

    m = 1 + D + D (D + 1) / 2: 2,145 features at D = 64, a larger state than a KV cache below about a thousand tokens.
    scale is D^-0.5 unless given. Centre keys by a constant before the call where that helps: softmax does not notice.

    Reference:

        similarity = 1 + s + s**2 / 2
    """

    scale: float | None = None

    def __post_init__(self) -> None:
        _check_scale(self)

    def features(self, head_dim: int) -> int:
        return 1 + head_dim + head_dim * (head_dim + 1) // 2

    def __call__(self, x: Tensor) -> Tensor:
        d = x.shape[-1]
        scaled = x * (d**-0.25 if self.scale is None else math.sqrt(self.scale))
        row, column = torch.triu_indices(d, d, device=x.device)
        weight = torch.where(row == column, math.sqrt(0.5), 1.0).to(x.dtype)
        return torch.cat([torch.ones_like(x[..., :1]), scaled, scaled[..., row] * scaled[..., column] * weight], -1)


@description
@dataclass(frozen=True)
class Polynomial(FeatureMap):
    """phi(q)'phi(k) = (1 + scale q'k)^degree, exactly. m = (D + 1)^degree; products are signed for an odd degree.

    scale is D^-0.5 unless given.

    Reference:

        similarity = (1 + s) ** degree
    """

    degree: int = 2
    scale: float | None = None

    def __post_init__(self) -> None:
        Checks.integer(self, "degree", 1)
        _check_scale(self)

    @property
    def positive(self) -> bool:  # type: ignore[override]
        return self.degree % 2 == 0

    def features(self, head_dim: int) -> int:
        return (head_dim + 1) ** self.degree

    def __call__(self, x: Tensor) -> Tensor:
        scaled = x * (x.shape[-1] ** -0.25 if self.scale is None else math.sqrt(self.scale))
        one = torch.cat([torch.ones_like(x[..., :1]), scaled], -1)
        out = one
        for _ in range(self.degree - 1):
            out = (out[..., :, None] * one[..., None, :]).flatten(-2)
        return out


NAMES: dict[str, type[FeatureMap]] = {
    "elu1": Elu1,
    "relu": Relu,
    "exp": Exp,
    "taylor2": Taylor2,
    "polynomial": Polynomial,
}


def feature_map(value: FeatureMap | str) -> FeatureMap:
    """The map itself, or the one of that name."""
    if isinstance(value, FeatureMap):
        return value
    if isinstance(value, str) and value in NAMES:
        return NAMES[value]()
    raise ArgumentError("feature_map", f"a FeatureMap or one of {', '.join(NAMES)}", repr(value))


def _check_scale(owner: Taylor2 | Polynomial) -> None:
    if owner.scale is not None:
        Checks.number(owner, "scale", lambda s: 0 < s < math.inf, "a positive number or None")
