"""exp(x), elementwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra._description import description
from quadform.algebra.features._feature_map import FeatureMap, stable_exp


@description
@dataclass(frozen=True)
class Exp(FeatureMap):
    """exp(x), elementwise: sim(q, k) = sum_f exp(q_f + k_f). m = D, positive.

    Queries are divided by the largest feature of their row and never overflow; keys overflow float32 above x = 88.

    Reference:

        phi = torch.exp(x)
    """

    validity = "keys below 88 in float32; not an approximation of exp(s)"

    def features(self, head_dim: int) -> int:
        return head_dim

    def __call__(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def query(self, q: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return stable_exp(q)
