"""Weights made of weights: exact softmax near and a kernel far (Hybrid), and two hops through extra nodes (Via)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._description import Checks, description
from quadform.algebra._edge_weights import Taps, Uniform
from quadform.algebra._edges import Edges
from quadform.algebra._operands import Operands, TensorSpec
from quadform.algebra._views import View
from quadform.algebra._weights import Kernel, Softmax, Weights, content_scale


@description
@dataclass(frozen=True)
class Hybrid(Weights):
    """Exact softmax on the near edges, a kernel on all others, one joint normaliser.

        w_ij = exp(scale q_i'k_j) / z_i          where (i, j) is near
        w_ij = exp(g) phi(q_i)'phi(k_j) / z_i    elsewhere

    Args:
        near: positional edges, such as Window(8, 8) | Global(first=1).
        far: a Kernel without decay or a running centre, whose features have products >= 0.
        scale: of q'k; head_dim^-0.5 unless given.

    Tensors: optional `far_gain` (H,), the log-gain g of the far part, 0 unless given: -inf leaves the near edges alone, and
    a learned one makes up for a kernel that is smaller or larger than exp(scale q'k). Those of the far kernel's map.

    Near and far share the stabiliser max(largest near score, log of the far sum), so exp(100) near stays finite.

    Reference:

        far = torch.exp(far_gain) * phi(q) @ phi(k).mT
        w = torch.where(near, torch.exp(s), far) * mask;  w = w / w.sum(-1, keepdim=True)
    """

    near: Edges
    far: Kernel
    scale: float | None = None

    log = True
    reads = ("q", "k")

    def __post_init__(self) -> None:
        Checks.instance(self, "near", Edges, "edges such as Window(8)")
        Checks.instance(self, "far", Kernel, "a Kernel")
        if self.scale is not None:
            Checks.number(self, "scale", lambda s: s > 0, "a positive number or None")
        if self.near.content or not self.near.positional:
            raise ArgumentError("Hybrid.near", "positional edges such as Window(8) | Global(first=1)", str(self.near))
        phi = self.far.phi
        if self.far.decay is not None or not self.far.normalise or not phi.positive or phi.running:
            expected = "a normalised Kernel with positive products, without decay and without a running centre"
            raise ArgumentError("Hybrid.far", expected, str(self.far))

    def specs(self) -> tuple[TensorSpec, ...]:
        gain = TensorSpec("far_gain", ("H",), "log of the gain of the far part; 0 unless given", optional=True)
        return (gain, *self.far.specs())

    def prepare(self, operands: Operands) -> Operands:
        """Scaled q; `far_q` and `far_k`, the features; `far_scale` (B, H, Q), the log of each row's factor with the gain."""
        q, k = operands.require("q"), operands.require("k")
        far_q, factor = self.far.phi.query(q, operands.tensors)
        more: dict[str, tuple[tuple[str, ...], Tensor]] = {
            "far_q": (("B", "H", "Q", "M"), far_q),
            "far_k": (("B", "H", "K", "M"), self.far.phi.key(k, operands.tensors)),
        }
        gain = operands.optional("far_gain")
        if gain is not None:
            factor = gain[None, :, None] if factor is None else factor + gain[None, :, None]
        if factor is not None:
            more["far_scale"] = (("B", "H", "Q"), factor.expand(*q.shape[:3]))
        return operands.with_features(q * content_scale(self.scale, q), k, **more)

    def scores(self, view: View, operands: Operands) -> Tensor:
        near = view.dot(operands.require("q"), operands.require("k"))
        return torch.where(view.member(self.near), near, self.far_scores(view, operands))

    def far_scores(self, view: View, operands: Operands) -> Tensor:
        """log of the far weights; -inf where the kernel is 0."""
        far = view.dot(operands.named("far_q"), operands.named("far_k"))
        some = far > 0
        logs = torch.where(some, torch.where(some, far, 1).log(), -torch.inf)
        scale = operands.optional("far_scale")
        return logs if scale is None else logs + view.receiver(scale)


@description
@dataclass(frozen=True)
class Matrix(Weights):
    """w_ij = matrix[h, i, j]: raw signed weights that the call passes. Tensor `matrix` (B or 1, H or 1, Q, K).

    Reference:

        y = matrix @ v
    """

    normalised = False

    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("matrix", ("B", "H", "Q", "K"), "weight of each pair"),)

    def scores(self, view: View, operands: Operands) -> Tensor:
        return view.pair(operands.named("matrix"))


@description
@dataclass(frozen=True)
class Via(Weights):
    """Two hops through `nodes` extra nodes: inner from the senders to the nodes, outer from the nodes to the receivers.

        k~ = P k,  v~ = P' v  (inner),        y_i = sum_c outer(q_i, k~_c) v~_c

    Args:
        nodes: how many extra nodes, m.
        inner: Taps() (Linformer: tensor `projection` (H or 1, m, N), optional `projection_v` of the same shape; column p
            belongs to position p, so N is the longest sequence), Uniform("mean") (adaptive average pooling: node c
            averages positions floor(c L / m) to ceil((c + 1) L / m)), or Softmax() (virtual nodes: tensor `node_q`
            (H, m, D), optional `node_k` (H, m, D)).
        outer: Softmax().
        core: None, or "pinv" for Nystrom's three factors softmax(q k~') pinv(softmax(q~ k~')) softmax(q~ k') v with pooled
            q~, k~; inner must then be Uniform("mean").

    Every sender reaches every receiver, so the edges are All(). There is no causal form: a projection of the whole sequence
    already contains its future.
    Source: Wang et al. 2020, "Linformer"; Xiong et al. 2021, "Nystromformer".

    Reference (Linformer):

        y = torch.softmax(q @ (projection @ k).mT * scale, -1) @ (projection @ v)
    """

    nodes: int
    inner: Weights
    outer: Weights
    core: Literal["pinv"] | None = None

    reads = ("q", "k")

    def __post_init__(self) -> None:
        Checks.integer(self, "nodes", 1)
        kinds = (Taps(), Uniform("mean"), Softmax(scale=getattr(self.inner, "scale", None)))
        if self.inner not in kinds:
            raise ArgumentError("Via.inner", 'Taps(), Uniform("mean") or Softmax()', str(self.inner))
        if not isinstance(self.outer, Softmax) or not self.outer.content or self.outer.bias is not None:
            raise ArgumentError("Via.outer", "a Softmax of content alone", str(self.outer))
        Checks.choice(self, "core", (None, "pinv"))
        if self.core and self.inner != Uniform("mean"):
            raise ArgumentError("Via.inner", 'Uniform("mean") where core is "pinv"', str(self.inner))

    @property
    def pooling(self) -> bool:
        return self.inner == Uniform("mean")

    def specs(self) -> tuple[TensorSpec, ...]:
        size = str(self.nodes)
        if isinstance(self.inner, Taps):
            return (
                TensorSpec("projection", ("H", size, "N"), "weight of each position at each node"),
                TensorSpec(
                    "projection_v", ("H", size, "N"), "the same for values; projection unless given", optional=True
                ),
            )
        if self.pooling:
            return ()
        return (
            TensorSpec("node_q", ("H", size, "D"), "query of each node"),
            TensorSpec("node_k", ("H", size, "D"), "key of each node; what it gathered unless given", optional=True),
        )


def pooling_matrix(operands: Operands, nodes: int) -> tuple[Tensor, Tensor]:
    """(averages (Bp, 1, m, K), which nodes have a sender (Bp, 1, m)) of adaptive average pooling over kept senders."""
    at = operands.layout
    node = torch.arange(nodes, device=at.k_pos.device)[:, None]
    length = at.k_len[:, None, None]
    low = torch.div(node * length, nodes, rounding_mode="floor")
    high = -torch.div(-(node + 1) * length, nodes, rounding_mode="floor")
    position = at.k_pos[:, None, :]
    member = (position >= low) & (position < high)
    if at.k_valid is not None:
        member = member & at.k_valid[:, None, :]
    count = member.sum(-1, keepdim=True)
    share = member.to(operands.v.dtype) / count.clamp(min=1)
    return share[:, None], count[:, None, :, 0] > 0


def projection_matrix(operands: Operands, name: str) -> Tensor:
    """Columns of a projection at the senders' positions, 0 for senders that do not exist: (Bp, H, m, K)."""
    at, projection = operands.layout, operands.named(name)
    columns = projection.shape[-1]
    longest = int(at.k_pos.amax()) + 1 if at.keys else 0
    if longest > columns:
        raise ArgumentError("tensors", f"{name} with at least {longest} columns", str(columns))
    picked = projection[..., at.k_pos.clamp(0, max(columns - 1, 0))].movedim(-2, 0) if columns else projection[None]
    inside = at.k_pos >= 0
    if at.k_valid is not None:
        inside = inside & at.k_valid
    return torch.where(inside[:, None, None, :], picked, 0)
