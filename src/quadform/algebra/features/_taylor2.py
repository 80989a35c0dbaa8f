"""The second-order Taylor polynomial of exp(s), about 0, about a fixed key, or about each receiver's own mean score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quadform.algebra._description import Checks, description
from quadform.algebra._operands import TensorSpec
from quadform.algebra._views import View
from quadform.algebra.features._feature_map import FeatureMap
from quadform.algebra.features._products import suffix_products
from quadform.algebra.features._scaled import check_scale, rooted


@description
@dataclass(frozen=True)
class Taylor2(FeatureMap):
    """phi(q)'phi(k) = 1 + s + s^2 / 2 with s = scale q'k: the second-order Taylor polynomial of exp(s), always positive.

    m = 1 + D + D (D + 1) / 2: 2,145 features at D = 64, a larger state than a KV cache below about a thousand tokens.

    Args:
        scale: of q'k; D^-0.5 unless given.
        centre: where the polynomial touches exp(s). Softmax does not notice a constant added to all keys; a polynomial does.
            None: at s = 0.
            "fixed": at the key c that the call passes as `key_centre` (H, D), such as the mean key of training data:
                sim = exp(scale q'c) (1 + t + t^2 / 2) with t = scale q'(k - c); the first factor cancels in a row's sum.
            "running": at the mean score of the receiver's own senders, t_ij = s_ij - mean of s_ij' over j' in E(i). A
                receiver's senders are its past where edges are causal, so nothing looks ahead. It is linear in the key:
                the first features of sum_j phi(k_j) are the number of keys and their sum, so a causal stream's (S, z)
                already carries the mean, and the receiver's features alone change:
                [1 - b + b^2 / 2, (1 - b) q, q q'/ sqrt 2] with b the mean score. A kernel with decay, and the far part
                of Hybrid, do not have that sum, and refuse it. z is not centred: float32 keeps about 7 - 2 log10 b digits.

    Source: Arora et al. 2024, "Simple linear attention language models balance the recall-throughput tradeoff" (Based).

    Reference:

        similarity = 1 + s + s**2 / 2
    """

    scale: float | None = None
    centre: Literal["fixed", "running"] | None = None

    validity = "every x; within 4 % of exp(s) for |s| < 0.5 from the centre, 36 % for |s| < 1"

    def __post_init__(self) -> None:
        check_scale(self)
        Checks.choice(self, "centre", (None, "fixed", "running"))

    @property
    def running(self) -> bool:  # type: ignore[override]
        return self.centre == "running"

    def features(self, head_dim: int) -> int:
        return 1 + head_dim + head_dim * (head_dim + 1) // 2

    def specs(self) -> tuple[TensorSpec, ...]:
        if self.centre != "fixed":
            return ()
        return (TensorSpec("key_centre", ("H", "D"), "the key at which the polynomial touches exp"),)

    def __call__(self, x: Tensor) -> Tensor:
        d = x.shape[-1]
        scaled = rooted(self, x)
        products = suffix_products(scaled, scaled, range(1, d + 1))
        return torch.cat([torch.ones_like(x[..., :1]), scaled, scaled * scaled * math.sqrt(0.5), products], -1)

    def query(self, q: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        if self.centre != "fixed":
            return self(q), None
        centre = tensors["key_centre"][..., :, None]
        return self(q), (rooted(self, q) @ rooted(self, centre.mT).mT)[..., 0]

    def key(self, k: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        return self(k - tensors["key_centre"][..., None, :] if self.centre == "fixed" else k)

    def scores(self, view: View, q: Tensor, k: Tensor) -> Tensor:
        if not self.running:
            return view.dot(q, k)
        first = slice(1, 1 + _dimension(q))
        s = view.dot(q[..., first], k[..., first])
        t = s - view.mean(s)
        return 1 + t + t * t / 2

    def recentred(self, q: Tensor, sums: Callable[[int], Tensor]) -> Tensor:
        d = _dimension(q)
        count, total = sums(1 + d).split([1, d], -1)
        linear = q[..., 1 : 1 + d]
        b = (linear * total).sum(-1, keepdim=True) / torch.where(count == 0, 1, count)
        return torch.cat([1 - b + b * b / 2, (1 - b) * linear, q[..., 1 + d :]], -1)


def _dimension(features: Tensor) -> int:
    """D of m = (D + 1)(D + 2) / 2 features."""
    return (math.isqrt(8 * features.shape[-1] + 1) - 3) // 2
