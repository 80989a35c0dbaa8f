"""A power of an affine function of q'k, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra._description import Checks, description
from quadform.algebra.features._feature_map import FeatureMap
from quadform.algebra.features._scaled import check_scale, rooted


@description
@dataclass(frozen=True)
class Polynomial(FeatureMap):
    """phi(q)'phi(k) = (offset + scale q'k)^degree, exactly: the monomials of that degree in [sqrt(offset), sqrt(scale) x].

    m = C(D + degree, degree), or C(D + degree - 1, degree) without an offset. Products are signed for an odd degree, and
    vanish where scale q'k = -offset.

    Args:
        degree: at least 1. offset: at least 0. scale: of q'k; D^-0.5 unless given.

    Reference:

        similarity = (offset + s) ** degree
    """

    degree: int = 2
    offset: float = 1.0
    scale: float | None = None

    validity = "every x, but rows whose sum is near 0; (1 + s / p)^p is about exp(s - s^2 / 2p)"

    def __post_init__(self) -> None:
        Checks.integer(self, "degree", 1)
        Checks.number(self, "offset", lambda c: 0 <= c < math.inf, "a number of at least 0")
        check_scale(self)

    @property
    def positive(self) -> bool:  # type: ignore[override]
        return self.degree % 2 == 0

    def features(self, head_dim: int) -> int:
        return math.comb(head_dim + (self.offset > 0) + self.degree - 1, self.degree)

    def __call__(self, x: Tensor) -> Tensor:
        base = rooted(self, x)
        if self.offset:
            base = torch.cat([torch.full_like(x[..., :1], math.sqrt(self.offset)), base], -1)
        index, count = _monomials(base.shape[-1], self.degree, x.device)
        out = base[..., index[0]] * count.sqrt().to(x.dtype)
        for factor in index[1:]:
            out = out * base[..., factor]
        return out


def _monomials(variables: int, degree: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(degree, m) factors of each monomial, in order, and (m,) how many products of factors are that monomial."""
    factors = torch.combinations(torch.arange(variables, device=device), degree, with_replacement=True)
    index = factors.reshape(-1, degree).T
    count = torch.ones(index.shape[1], dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
    run = torch.ones_like(count)
    for t in range(1, degree):
        run = torch.where(index[t] == index[t - 1], run + 1, 1)
        count = count * (t + 1) / run
    return index, count
