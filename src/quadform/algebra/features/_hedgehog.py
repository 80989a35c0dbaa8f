"""A learned linear map and a softmax over its outputs and their negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra._description import Checks, description
from quadform.algebra._operands import TensorSpec
from quadform.algebra.features._feature_map import FeatureMap


@description
@dataclass(frozen=True)
class Hedgehog(FeatureMap):
    """phi(x) = softmax over the features of [W x, -W x]. m = 2 width, positive, and each feature is at most 1.

    Tensors: `feature_weight` (H, width, D), W; optional `feature_weight_k` of the same shape, the keys' own W. Distilling
    them makes the kernel's weights close to those of a softmax.

    Args:
        width: rows of W; D unless given.

    Source: Zhang et al. 2024, "The Hedgehog and the Porcupine: expressive linear attentions with softmax mimicry".

    Reference:

        phi = torch.softmax(torch.cat([x @ feature_weight.mT, -x @ feature_weight.mT], -1), -1)
    """

    width: int | None = None

    validity = "every x; as close to exp(s) as W was trained to make it"

    def __post_init__(self) -> None:
        if self.width is not None:
            Checks.integer(self, "width", 1)

    def features(self, head_dim: int) -> int:
        return 2 * (head_dim if self.width is None else self.width)

    def specs(self) -> tuple[TensorSpec, ...]:
        dims = ("H", "D" if self.width is None else str(self.width), "D")
        return (
            TensorSpec("feature_weight", dims, "rows of the learned map"),
            TensorSpec("feature_weight_k", dims, "the same for keys; feature_weight unless given", optional=True),
        )

    def __call__(self, x: Tensor, feature_weight: Tensor) -> Tensor:
        y = x @ feature_weight.mT
        return torch.softmax(torch.cat([y, -y], -1), -1)

    def query(self, q: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return self(q, tensors["feature_weight"]), None

    def key(self, k: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        return self(k, tensors.get("feature_weight_k", tensors["feature_weight"]))
