"""Sums over a stream."""

from __future__ import annotations

import torch
from torch import Tensor


class Sums:
    """Named tensors that are added up in float64."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def add(self, terms: dict[str, Tensor]) -> None:
        """Adds `terms` to the sums of the same names."""
        for name, term in terms.items():
            term = term.to(torch.float64)
            self.values[name] = self.values[name] + term if name in self.values else term.clone()
