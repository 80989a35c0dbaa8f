"""max(x, 0)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra._description import description
from quadform.algebra.features._feature_map import FeatureMap


@description
@dataclass(frozen=True)
class Relu(FeatureMap):
    """max(x, 0). m = D, positive. A row whose features are all orthogonal to the keys' has no weights and gives 0.

    Source: Kasai et al. 2021, "Finetuning pretrained transformers into RNNs" (there with a learned map before it).

    Reference:

        phi = torch.relu(x)
    """

    validity = "every x; a row may have no weights; not an approximation of exp(s)"

    def features(self, head_dim: int) -> int:
        return head_dim

    def __call__(self, x: Tensor) -> Tensor:
        return torch.relu(x)
