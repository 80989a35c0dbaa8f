"""What a feature map is: the protocol that the maps here follow and that a map of one's own follows too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from quadform.algebra._description import Description
from quadform.algebra._operands import TensorSpec
from quadform.algebra._views import View


class FeatureMap(Description):
    """phi: (..., D) -> (..., m), with sim(q, k) = phi(q)'phi(k).

    A map of one's own derives from this class and defines `features` and `__call__`; as a frozen dataclass it can be
    hashed, compared and printed, and `quadform.algebra.description` registers it for `parse` and `from_json`. The rest has
    defaults: `specs` where it has weights (the call passes them, and `__call__` takes them by name: x is (B, H, N, D), they are
    as their specs say), `query` and `key` where receivers and senders differ.

    Attributes:
        positive: whether every product phi(q)'phi(k) is >= 0, so that no row's sum can vanish by cancelling. Where it
            is not, a row's sum may come near 0 and its output far from every value.
        validity: for which inputs the map is finite, and where it is close to exp(scale q'k).
        running: whether a product depends on the other senders of its receiver, through their mean.

    Example:

        @dataclass(frozen=True)
        class Squares(FeatureMap):
            def features(self, head_dim):
                return head_dim

            def __call__(self, x):
                return x * x

        y = attend(q, k, v, Causal(), Kernel(Squares()))
    """

    positive: ClassVar[bool] = True
    validity: ClassVar[str] = ""
    running = False

    def features(self, head_dim: int) -> int:
        """m for a head of that dimension."""
        raise NotImplementedError(f"{type(self).__name__} does not define features")

    def specs(self) -> tuple[TensorSpec, ...]:
        """The tensors that the call passes."""
        return ()

    def __call__(self, x: Tensor, *args: Any, **tensors: Any) -> Tensor:
        """phi(x), with the tensors of `specs` by name."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def query(self, q: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """(f (B, H, n, m), c (B, H, n) or None) with phi(q) = exp(c) f.

        A row's own factor exp(c) cancels where rows are divided by their sum, so f is what can be computed without
        overflow; it may read its own row alone.
        """
        return self(q, **self.own(tensors)), None

    def key(self, k: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """phi(k) (B, H, m, M)."""
        return self(k, **self.own(tensors))

    def own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of a call's tensors that this map declares."""
        names = [spec.name for spec in self.specs()]
        return {name: tensors[name] for name in names if name in tensors}

    def scores(self, view: View, q: Tensor, k: Tensor) -> Tensor:
        """phi(q_i)'phi(k_j) at the pairs of a view, for features q and k."""
        return view.dot(q, k)

    def recentred(self, q: Tensor, sums: Callable[[int], Tensor]) -> Tensor:
        """Features of receivers of a `running` map, from those of `query` (B, H, n, m).

        sums(c) is (B, H, n, c), the sums over each receiver's senders of the first c features of their keys.
        """
        return q


def stable_exp(a: Tensor) -> tuple[Tensor, Tensor]:
    """(exp(a - c), c) with c the largest of each row (...,), a constant to the gradient."""
    top = a.detach().amax(-1)
    top = torch.where(top.isfinite(), top, 0)
    return torch.exp(a - top[..., None]), top
