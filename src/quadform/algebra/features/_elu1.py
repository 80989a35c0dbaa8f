"""elu(x) + 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra._description import description
from quadform.algebra.features._feature_map import FeatureMap


@description
@dataclass(frozen=True)
class Elu1(FeatureMap):
    """elu(x) + 1, written so that negative x keep their digits: x + 1 where x > 0, exp(x) elsewhere.

    m = D, positive. Source: Katharopoulos et al. 2020.

    Reference:

        phi = torch.where(x > 0, x + 1, torch.exp(x))
    """

    validity = "every x; it is 0 below x = -103 in float32; not an approximation of exp(s)"

    def features(self, head_dim: int) -> int:
        return head_dim

    def __call__(self, x: Tensor) -> Tensor:
        return torch.exp(x.clamp(max=0)) + torch.relu(x)  # one of the two is exactly 1 or 0
