"""Heads of a known kind: q and k chosen so that the attention weights are exactly those planted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from quadform.inspect import CANDIDATES, Captured
from quadform.inspect._measures import Fitted, Fitting, Measuring

NEVER = -200.0
"""A score whose weight is nothing in float32."""


def planted(scores: Tensor, v: Tensor, keep: Tensor | None = None, **options: Any) -> Captured:
    """A call whose scores (B, H, N, M) are as given: keys are unit vectors and queries the rows of the scores."""
    batch, heads, n, m = scores.shape
    keep = torch.ones(batch, 1, n, m, dtype=torch.bool) if keep is None else keep
    k = torch.eye(m).expand(batch, heads, m, m)
    weights = scores.masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num()
    return Captured("planted", 0, scores, k, v, keep, 1.0, weights @ v, **options)


def values(batch: int, n: int, *, seed: int, heads: int = 1, dim: int = 6) -> Tensor:
    """Standard normal v (B, H, N, E)."""
    return torch.randn(batch, heads, n, dim, generator=torch.Generator().manual_seed(seed))


def causal(batch: int, n: int) -> Tensor:
    """The mask of a causal head."""
    return torch.ones(n, n, dtype=torch.bool).tril().expand(batch, 1, n, n)


def measure(measured: Iterable[Captured], fit: Iterable[Captured]) -> Measuring:
    """The measures of one head on `measured`, with everything fitted on `fit`."""
    fitting = Fitting(CANDIDATES)
    for captured in fit:
        fitting.add(captured)
    fitted: Fitted = fitting.fitted()
    measuring = Measuring(CANDIDATES, fitted)
    for captured in measured:
        measuring.add(captured)
    return measuring


def raw_errors(measured: Captured, fit: Captured) -> dict[str, float]:
    """Raw error of the first head by form."""
    return {name: error.raw for name, error in measure([measured], [fit]).errors()[0].items()}


class PlantedModel(nn.Module):
    """A model of two attention layers of three heads, random but for its embedding of tokens."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(50, 2, 3, 3, 8, generator=generator))


class PlantedCapture:
    """Hands over q, k and v of a `PlantedModel`."""

    def __init__(self) -> None:
        self.batches = 0

    def check(self, model: nn.Module, batch) -> float:
        return 0.0

    def run(self, model: nn.Module, batch, receive) -> None:
        self.batches += 1
        assert isinstance(model, PlantedModel)
        mask = batch["attention_mask"].bool() if "attention_mask" in batch else batch["input_ids"] >= 0
        for layer in range(2):
            q, k, v = model.table[batch["input_ids"], layer].permute(2, 0, 3, 1, 4)
            keep = mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
            y = nn.functional.scaled_dot_product_attention(q, k, v, keep, scale=0.5)
            receive(Captured(f"layer.{layer}", 0, q, k, v, keep, 0.5, y))


def token_batches(count: int, batch: int, n: int, *, seed: int) -> list[dict[str, Tensor]]:
    """Random token ids for a `PlantedModel`."""
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(50, (batch, n), generator=generator)} for _ in range(count)]
