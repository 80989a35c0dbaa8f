"""The tensors that a mixer declares, owned by a layer: parameters, seeded buffers, and what is predicted from the tokens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadform._errors import ArgumentError
from quadform.algebra import (
    And,
    Buckets,
    Edges,
    Hybrid,
    Kernel,
    Or,
    TensorSpec,
    Transposed,
    Weights,
    favor_projection,
)

OWNED = ("far_gain", "feature_weight_k")
"""Optional tensors that a layer learns; others that may be left out are left out."""
GATE_SCALE = 16.0
"""log_decay = logsigmoid(W x + b) / 16, so that gates begin close to 1 (Yang et al. 2024)."""


class Declared(nn.Module):
    """For `heads` heads of one mixer: `self(x, context)` gives the tensors of a call of the operator, by name.

    A tensor with a value for each token is predicted from it by a linear map ("Q": from the receivers x, "K": from the senders
    `context`); the slopes of Alibi and what is random and not learned (FAVOR+'s projection, LSH rotations) are buffers of
    the state_dict, drawn from a seed; all else are parameters.

    Errors: ArgumentError for tensors that no layer can own: those of pairs of tokens or of edges.
    """

    def __init__(
        self,
        embed_dim: int,
        context_dim: int,
        heads: int,
        head_dim: int,
        edges: Edges,
        weights: Weights,
        max_length: int | None,
        seed: int,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.weights = heads, head_dim, weights
        kernel = weights.far if isinstance(weights, Hybrid) else weights
        inner = edges.inner if isinstance(edges, Transposed) else edges
        self._sizes = {"H": heads, "D": head_dim, "G": 1, "T": getattr(inner, "taps", 0)}
        if isinstance(kernel, Kernel):
            self._sizes["M"] = kernel.phi.features(head_dim)
        if max_length is not None:
            self._sizes["N"] = max_length
        self.predicted = nn.ModuleDict()
        self._trailing: dict[str, tuple[int, ...]] = {}
        self._receivers: set[str] = set()
        for spec in weights.specs():
            if spec.optional and spec.name not in OWNED:
                continue
            if "E" in spec.dims or {"Q", "K"} <= set(spec.dims):
                raise ArgumentError(
                    "weights", f"weights whose tensors a layer can own; {spec.name!r} names pairs of tokens", weights
                )
            if "Q" in spec.dims or "K" in spec.dims:
                self._predict(spec, embed_dim if "Q" in spec.dims else context_dim)
            elif spec.name in ("slopes", "feature_projection"):
                self.register_buffer(spec.name, torch.empty(self._shape(spec)))
            else:
                self.register_parameter(spec.name, nn.Parameter(torch.empty(self._shape(spec))))
        self._buckets = _buckets(edges)
        if self._buckets is not None and self._buckets.n_buckets > 1:
            shape = (heads, self._buckets.n_hashes, head_dim, self._buckets.n_buckets // 2)
            self.register_buffer("rotations", torch.empty(shape))
        self.reset_parameters()
        self.redraw(seed)

    def _shape(self, spec: TensorSpec) -> tuple[int, ...]:
        if "N" in spec.dims and "N" not in self._sizes:
            raise ArgumentError(
                "max_length", f"the longest sequence, which {spec.name!r} of {self.weights} needs", "None"
            )
        return tuple(int(d) if d.isdigit() else self._sizes[d] for d in spec.dims)

    def _predict(self, spec: TensorSpec, width: int) -> None:
        trailing = tuple(int(d) if d.isdigit() else self._sizes[d] for d in spec.dims if d not in ("B", "H", "Q", "K"))
        self.predicted[spec.name] = nn.Linear(width, self.heads * math.prod(trailing))
        self._trailing[spec.name] = trailing
        if "Q" in spec.dims:
            self._receivers.add(spec.name)

    def reset_parameters(self) -> None:
        """Draws the parameters anew, from torch's own generator."""
        for name, parameter in self.named_parameters(recurse=False):
            with torch.no_grad():
                if name == "far_gain":
                    parameter.zero_()
                elif name == "alpha":
                    parameter.fill_(1.0)
                elif name == "precision":
                    parameter.copy_(torch.eye(parameter.shape[-1]).expand_as(parameter))
                elif name in ("table", "key_centre"):
                    parameter.normal_(std=0.02)
                elif name == "centre":
                    parameter.normal_()
                else:
                    parameter.normal_(std=max(parameter.shape[-1], 1) ** -0.5)

    @torch.no_grad()
    def redraw(self, seed: int) -> None:
        """Draws the seeded buffers anew; the same seed gives the same ones."""
        for name, buffer in self.named_buffers(recurse=False):
            with torch.device("cpu"):  # whatever the default device is, the numbers are the same
                buffer.copy_(self._draw(name, buffer.shape, seed))

    def _draw(self, name: str, shape: torch.Size, seed: int) -> Tensor:
        if name == "slopes":
            power = torch.arange(1, self.heads + 1, dtype=torch.float64) * -8 / self.heads
            return torch.tensor(2.0, dtype=torch.float64) ** power
        if name == "feature_projection":
            return favor_projection(self.heads, shape[1], self.head_dim, seed=seed)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def forward(self, x: Tensor, context: Tensor) -> dict[str, Tensor]:
        own = {name: t for name, t in (*self._parameters.items(), *self._buffers.items()) if t is not None}
        for name, linear in self.predicted.items():
            y = linear(x if name in self._receivers else context)
            y = y.unflatten(-1, (self.heads, *self._trailing[name])).transpose(1, 2)
            own[name] = F.logsigmoid(y) / GATE_SCALE if name == "log_decay" else y
        return own


def _buckets(edges: Edges) -> Buckets | None:
    """The hash buckets among the edges that `&`, `|` and `.T` combine."""
    if isinstance(edges, Buckets):
        return edges
    if isinstance(edges, And | Or):
        return _buckets(edges.left) or _buckets(edges.right)
    return _buckets(edges.inner) if isinstance(edges, Transposed) else None
