"""Weights of taps and of edges: convolution, dynamic convolution, and the aggregations of graph networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._description import Checks, description
from quadform.algebra._operands import Operands, TensorSpec
from quadform.algebra._views import View
from quadform.algebra._weights import Weights


@description
@dataclass(frozen=True)
class Taps(Weights):
    """w_ij = taps[h, t] for the tap t of a Stencil that leads from i to j: raw, signed, not normalised: a convolution.

    Tensor `taps` (H, T), in row-major order of the kernel.

    Reference:

        y = torch.nn.functional.conv1d(v, taps[:, None, :], groups=H)   # one channel a head
    """

    normalised = False
    needs_taps = True

    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("taps", ("H", "T"), "weight of each tap"),)

    def scores(self, view: View, operands: Operands) -> Tensor:
        return operands.named("taps")[:, view.tap[:, 0]].movedim(0, 1)


@description
@dataclass(frozen=True)
class Dynamic(Weights):
    """w_ij = softmax over the taps of logits[b, h, i, t]: taps that the receiver predicts for itself.

    Tensor `logits` (B, H, Q, T). With border "zeros" a missing tap keeps its share; with "renormalise" it has none.
    Source: Wu et al. 2019, "Pay less attention with lightweight and dynamic convolutions".

    Reference:

        y[i] = sum(torch.softmax(logits[i], -1)[t] * v[i + t - left] for t in range(T))
    """

    log = True
    needs_taps = True

    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("logits", ("B", "H", "Q", "T"), "score of each tap at each receiver"),)

    def scores(self, view: View, operands: Operands) -> Tensor:
        logits = operands.named("logits")
        return view.by_receiver(logits, view.tap)


@description
@dataclass(frozen=True)
class Uniform(Weights):
    """Equal weights: 1 ("sum"), 1 / d_i ("mean"), or 1 / sqrt(d_i d_j) ("symmetric"), d being the number of senders.

    "symmetric" is the GCN of Kipf and Welling 2017 (add self-loops to the edges first) and needs as many queries as keys.
    An edge that is named c times counts c times, in the weights and in d.

    Reference:

        w = mask / mask.sum(-1, keepdim=True)   # "mean"
    """

    aggregate: Literal["sum", "mean", "symmetric"] = "mean"

    def __post_init__(self) -> None:
        Checks.choice(self, "aggregate", ("sum", "mean", "symmetric"))

    @property
    def normalised(self) -> bool:  # type: ignore[override]
        return self.aggregate == "mean"

    def prepare(self, operands: Operands) -> Operands:
        if self.aggregate != "symmetric":
            return operands
        at = operands.layout
        if at.queries != at.keys:
            raise ArgumentError("q", f"{at.keys} queries, as many as keys, for Uniform('symmetric')", str(at.queries))
        degree = operands.edges.degrees(at).to(operands.v.dtype)
        root = torch.where(degree > 0, degree.clamp(min=1).rsqrt(), 0)
        return operands.with_features(
            operands.q, operands.k, root=(("B", "H", "Q"), root), root_k=(("B", "H", "K"), root)
        )

    def scores(self, view: View, operands: Operands) -> Tensor:
        if self.aggregate == "symmetric":
            return view.receiver(operands.named("root")) * view.sender(operands.named("root_k"))
        return operands.v.new_ones(1, 1, *([1] * view.rank))


@description
@dataclass(frozen=True)
class Additive(Weights):
    """w_ij = softmax over j of LeakyReLU(receiver_i + sender_j [+ edge_ij]): GAT. The call passes the two halves.

    Tensors `receiver` (B, H, Q), `sender` (B, H, K), optionally `edge` (B, H, E) on Graph edges.
    Source: Velickovic et al. 2018, "Graph attention networks".

    Reference:

        s = leaky_relu(receiver[..., :, None] + sender[..., None, :], negative_slope)
    """

    negative_slope: float = 0.2
    edge: bool = False

    log = True

    def __post_init__(self) -> None:
        Checks.number(self, "negative_slope", lambda s: 0 <= s < math.inf, "a number of at least 0")
        Checks.choice(self, "edge", (True, False))

    @property
    def per_edge(self) -> bool:  # type: ignore[override]
        return self.edge

    def specs(self) -> tuple[TensorSpec, ...]:
        halves = (
            TensorSpec("receiver", ("B", "H", "Q"), "the receiver's half of the score"),
            TensorSpec("sender", ("B", "H", "K"), "the sender's half of the score"),
        )
        return (*halves, TensorSpec("edge", ("B", "H", "E"), "the edge's part")) if self.edge else halves

    def scores(self, view: View, operands: Operands) -> Tensor:
        total = view.receiver(operands.named("receiver")) + view.sender(operands.named("sender"))
        if self.edge:
            total = total + view.edge(operands.named("edge"))
        return torch.nn.functional.leaky_relu(total, self.negative_slope)


@description
@dataclass(frozen=True)
class AdditiveV2(Weights):
    """w_ij = softmax over j of attention_h'LeakyReLU(q_i + k_j): GATv2.

    Tensor `attention` (H, D). Source: Brody et al. 2022, "How attentive are graph attention networks?".

    Reference:

        s = (leaky_relu(q[..., :, None, :] + k[..., None, :, :], negative_slope) * attention).sum(-1)
    """

    negative_slope: float = 0.2

    log = True
    reads = ("q", "k")

    def __post_init__(self) -> None:
        Checks.number(self, "negative_slope", lambda s: 0 <= s < math.inf, "a number of at least 0")

    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("attention", ("H", "D"), "direction that scores the sum"),)

    def scores(self, view: View, operands: Operands) -> Tensor:
        attention = operands.named("attention")
        slope = self.negative_slope

        def score(a: Tensor, b: Tensor, direction: Tensor) -> Tensor:
            return (torch.nn.functional.leaky_relu(a + b, slope) * direction).sum(-1)

        shaped = attention.view(1, attention.shape[0], *([1] * view.rank), attention.shape[1])
        return view.pairwise(score, operands.require("q"), operands.require("k"), shaped)
