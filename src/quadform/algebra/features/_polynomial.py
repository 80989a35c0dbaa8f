"""A power of an affine function of q'k, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, groupby

import torch
from torch import Tensor

from quadform.algebra._description import Checks, description
from quadform.algebra.features._feature_map import FeatureMap
from quadform.algebra.features._products import suffix_products
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
        count = torch.tensor(_multiplicities(base.shape[-1], self.degree), dtype=torch.float64)
        return _monomials(base, self.degree) * count.sqrt().to(x)


def _monomials(x: Tensor, degree: int) -> Tensor:
    """Products of `degree` entries of x (..., n), each once, in the order of their sorted indices: (..., m)."""
    n, out = x.shape[-1], x
    for power in range(1, degree):
        starts = [math.comb(n + power - 1, power) - math.comb(n - i + power - 1, power) for i in range(n)]
        out = suffix_products(x, out, starts)
    return out


@lru_cache(maxsize=32)
def _multiplicities(n: int, degree: int) -> tuple[float, ...]:
    """How many products of `degree` entries, in any order, each of those monomials is: degree! / (n_1! n_2! ...)."""
    every = combinations_with_replacement(range(n), degree)
    return tuple(
        math.factorial(degree) / math.prod(math.factorial(len(list(run))) for _, run in groupby(indices))
        for indices in every
    )
