"""A kernel that needs no training: the exponential's Taylor series about the mean query and key."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.inspect import _mixers
from quadform.inspect._block import Block
from quadform.inspect._captured import Captured
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect._sums import Sums


@dataclass(frozen=True)
class Taylor:
    """w_ij ~ exp(a'k_j) (1 + s + s^2 / 2), s = (q_i - a)'(k_j - b) with a and b the means of the fitting inputs.

    exp(q'k) = exp(a'k) exp((q - a)'(k - b)) times a factor of i alone, so only the second exponential is approximated:
    a key that all queries prefer costs no accuracy. phi(k) = exp(a'k) (1, k - b, pairs), 1 + D + D (D + 1) / 2 features.
    """

    letter: str = "K"
    kind: str = "kernel"
    oracle: bool = False
    name: str = "kernel-taylor2"
    description: str = (
        "kernel without training: the exponential's Taylor series to second order about the mean query and key of the "
        "fitting inputs, 1 + D + D(D + 1)/2 features"
    )

    def refusal(self, captured: Captured) -> str | None:
        return not_q_k_alone(captured)

    def fitter(self) -> _Means:
        return _Means()

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        assert fitted is not None
        query, key = fitted.to(block.q.dtype)[:, None].unbind(2)  # (H, 1, D)
        scaling = block.captured.scaling
        gain = (query @ (block.k - key).transpose(-1, -2)) * scaling
        scores = (block.q - query) @ (block.k - key).transpose(-1, -2) * scaling
        gain = (gain - gain.amax(-1, keepdim=True)).exp()
        weights = (gain * (1 + scores + scores.square() / 2)).masked_fill(~block.keep, 0.0)
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny) @ block.v

    def mixer(self, shape: Shape) -> Mixer | None:
        return _mixers.taylor(shape)


class _Means:
    """(H, 2, D): the mean query and the mean key."""

    def __init__(self) -> None:
        self._sums = Sums()

    def add(self, block: Block) -> None:
        heads, valid = block.q.shape[1], block.valid
        terms = {"query": block.measured(block.q).sum((0, 2)), "queries": valid.sum().expand(heads)}
        if not block.first:
            seen = block.captured.seen
            terms |= {"key": (block.k * seen[:, None, :, None]).sum((0, 2)), "keys": seen.sum().expand(heads)}
        self._sums.add(terms)

    def fitted(self) -> Tensor:
        sums = self._sums.values
        query = sums["query"] / sums["queries"].clamp(min=1)[:, None]
        return torch.stack([query, sums["key"] / sums["keys"].clamp(min=1)[:, None]], 1)


def not_q_k_alone(captured: Captured) -> str | None:
    """The refusal of forms that compute with q and k instead of scores."""
    parts = {"a bias": captured.bias, "a soft cap": captured.softcap, "a learned sink": captured.sink}
    present = [name for name, value in parts.items() if value is not None]
    return f"the scores have {' and '.join(present)}, which features of q and k do not hold" if present else None
