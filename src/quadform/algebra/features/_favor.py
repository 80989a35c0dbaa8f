"""Positive orthogonal random features: an unbiased estimate of exp(q'k)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._description import Checks, description
from quadform.algebra._operands import TensorSpec
from quadform.algebra.features._feature_map import FeatureMap, stable_exp
from quadform.algebra.features._scaled import check_scale, rooted


@description
@dataclass(frozen=True)
class Favor(FeatureMap):
    """phi(x)_f = exp(w_f'u - |u|^2 / 2) / sqrt(m) with u = sqrt(scale) x: the mean over w of phi(q)'phi(k) is exp(scale q'k).

    m = num_features, positive. Tensor: `feature_projection` (H, num_features, D), the rows w_f, as `favor_projection` makes
    them; a stream keeps the rows that it began with.

    Stabilisers: a query's features are divided by their largest, which cancels in its row. Keys have none, since a
    maximum over the sequence would look ahead and a running one rescales every sum; they do not need one: a feature of a key is
    at most exp(|w_f|^2 / 2), which float32 holds for |w_f|^2 < 176 (on average |w_f|^2 = D). Keys far longer than that,
    |u| > |w_f| + 13 for all f, have features of 0.

    Args:
        num_features: m, at least 1. The relative error of a weight falls like m^-0.5 exp(scale |q + k|^2 / 2).
        scale: of q'k; D^-0.5 unless given.

    Source: Choromanski et al. 2021, "Rethinking attention with Performers".

    Reference:

        u = x * scale**0.5
        phi = torch.exp(u @ feature_projection.mT - (u * u).sum(-1, keepdim=True) / 2) / num_features**0.5
    """

    num_features: int = 256
    scale: float | None = None

    validity = "|w|^2 < 176 in float32; unbiased, with a relative error of about m^-0.5 exp(scale |q + k|^2 / 2)"

    def __post_init__(self) -> None:
        Checks.integer(self, "num_features", 1)
        check_scale(self)

    def features(self, head_dim: int) -> int:
        return self.num_features

    def specs(self) -> tuple[TensorSpec, ...]:
        dims = ("H", str(self.num_features), "D")
        return (TensorSpec("feature_projection", dims, "random rows w, as favor_projection makes them"),)

    def __call__(self, x: Tensor, feature_projection: Tensor) -> Tensor:
        return self._exponent(x, feature_projection).exp()

    def query(self, q: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return stable_exp(self._exponent(q, tensors["feature_projection"]))

    def _exponent(self, x: Tensor, rows: Tensor) -> Tensor:
        u = rooted(self, x)
        return u @ rows.mT - (u * u).sum(-1, keepdim=True) / 2 - math.log(self.num_features) / 2


def favor_projection(
    heads: int,
    num_features: int,
    head_dim: int,
    *,
    seed: int,
    orthogonal: bool = True,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """(H, num_features, D) rows w for `Favor`: each is standard normal; each block of D rows of a head is orthogonal.

    The same seed gives the same rows on every machine's CPU, up to rounding. Another seed draws anew.

    Args:
        orthogonal: False for independent rows, whose estimate has more variance.

    Errors: ArgumentError for a size below 1 or a seed that is no integer.
    Source: Choromanski et al. 2021, section 2.4.

    Reference:

        directions = torch.linalg.qr(torch.randn(H, D, D)).Q
        w = directions * torch.randn(H, D, D).norm(dim=-1, keepdim=True)
    """
    for name, value in (("heads", heads), ("num_features", num_features), ("head_dim", head_dim)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(name, "an integer of at least 1", repr(value))
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentError("seed", "an integer", repr(seed))
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-num_features // head_dim)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    rows = normal(heads, blocks, head_dim, head_dim)
    if orthogonal:
        directions, upper = torch.linalg.qr(rows)
        signs = upper.diagonal(dim1=-2, dim2=-1).sign()  # without them the directions are not uniform
        rows = (directions * signs[..., None, :]).mT * normal(heads, blocks, head_dim, head_dim).norm(
            dim=-1, keepdim=True
        )
    return rows.flatten(1, 2)[:, :num_features].to(device, dtype)
