"""Random tensors of a case: content, and everything that a description declares."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra import Hybrid, Kernel, Polynomial, Relu, Similarity, TensorSpec, Via, Weights


@dataclass(frozen=True)
class Source:
    """A seeded stream of numbers and tensors; the same seed gives the same stream on every machine."""

    rng: random.Random
    generator: torch.Generator

    @classmethod
    def of(cls, *names: object) -> Source:
        rng = random.Random("/".join(map(str, names)))
        return cls(rng, torch.Generator().manual_seed(rng.getrandbits(63)))

    def normal(self, *shape: int) -> Tensor:
        """Values within three standard deviations, so that no case hangs on an outlier."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).clamp(-3, 3)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def bits(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < 0.6

    def size(self, low: int, high: int, limit: int | None = None) -> int:
        """A size between the bounds, the ends drawn more often; never above the limit where one is set."""
        draw = self.rng.choice(
            (low, min(low + 1, high), high, self.rng.randint(low, high), self.rng.randint(low, high))
        )
        return draw if limit is None else min(draw, max(limit, low))


def content(weights: Weights, x: Tensor, source: Source) -> Tensor:
    """Standard normal q or k, moved where the weights' denominators would come near 0."""
    phi = weights.phi if isinstance(weights, Kernel) else weights.far.phi if isinstance(weights, Hybrid) else None
    if isinstance(phi, Polynomial) or (isinstance(weights, Similarity) and weights.function == "polynomial"):
        return x / 6  # 1 + s stays away from 0
    if isinstance(phi, Relu):
        return torch.where(x < 0, x - 0.3, x + 0.3)
    if isinstance(weights, Via) and weights.core:
        signs = torch.ones(x.shape[-2], 1, dtype=x.dtype)
        signs[x.shape[-2] // 2 :] = -1
        return x / 10 + signs  # two nodes that differ, so that the inverse exists
    return x


def declared(spec: TensorSpec, sizes: dict[str, int], source: Source) -> Tensor:
    """A tensor for a spec; B and H are sometimes 1."""
    shape = []
    for dim in spec.dims:
        size = int(dim) if dim.isdigit() else sizes[dim]
        shape.append(1 if dim in ("B", "H") and source.rng.random() < 0.25 else size)
    if spec.name in ("alpha", "slopes"):
        return 0.05 + source.uniform(*shape)
    if spec.name == "log_decay":
        return -source.uniform(*shape)
    if spec.name == "precision":
        root = source.normal(*shape) / 2
        return root @ root.transpose(-1, -2)
    if spec.name == "row_scale":
        return 0.5 + source.uniform(*shape)
    return source.normal(*shape)


def stride(x: Tensor, source: Source) -> Tensor:
    """The same values (or a repetition of the first row) behind strides that callers do pass."""
    how = source.rng.choice(("plain", "plain", "transposed", "sliced", "expanded", "wide"))
    if x.dim() < 2:
        return x
    if how == "transposed":
        return x.transpose(-2, -3).contiguous().transpose(-2, -3) if x.dim() > 2 else x.T.contiguous().T
    if how == "sliced":
        out = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])[..., ::2]
    elif how == "wide":
        out = x.new_zeros(*x.shape[:-2], x.shape[-2] + 3, x.shape[-1])[..., 2 : 2 + x.shape[-2], :]
    elif how == "expanded" and x.shape[0] > 0:
        return x[:1].clone().expand(x.shape)
    else:
        return x
    return out.copy_(x)
