"""Weights: how much a sender counts. A weight is a few tensor functions of a view; dense and graph evaluate any of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._description import Checks, Description, description
from quadform.algebra._layout import Layout
from quadform.algebra._operands import Operands, TensorSpec
from quadform.algebra._relative import Bias
from quadform.algebra._views import View
from quadform.algebra.features import FeatureMap, feature_map


class Weights(Description):
    """Base of all weights.

    `scores` gives log-weights where `log` is true (then w_ij = exp(s_ij) / sum_j exp(s_ij), with the row's own maximum), and
    weights themselves elsewhere (divided by their sum over j where `normalised`). A pair that is an edge c times counts c
    times. A row without edges gives 0.
    """

    log = False
    normalised = True
    reads: tuple[str, ...] = ()  # which of q and k the weights read
    per_edge = False  # needs to know which edge of a Graph a pair is
    needs_taps = False
    scores_causal_only = False

    def specs(self) -> tuple[TensorSpec, ...]:
        """The tensors that the call passes."""
        return ()

    def prepare(self, operands: Operands) -> Operands:
        """What does not depend on the pair, computed once: scaled queries, features, running gates."""
        return operands

    def scores(self, view: View, operands: Operands) -> Tensor:
        """(B, H, *pairs) from prepared operands."""
        raise NotImplementedError(f"{type(self).__name__} does not define scores")


@description
@dataclass(frozen=True)
class Softmax(Weights):
    """w_ij = softmax over j of  softcap tanh(scale q_i'k_j / softcap) + bias_ij.

    Args:
        content: whether q'k takes part; without it the weights depend on the bias alone and q, k may be None.
        bias: None, a relative score (Table, Quadratic, Alibi, T5Buckets), PairBias or EdgeBias.
        scale: of q'k; head_dim^-0.5 unless given.
        softcap: bound of the content score, or None.

    Source: Vaswani et al. 2017; Shaw et al. 2018 and Cordonnier et al. 2020 for relative scores.

    Reference:

        w = torch.softmax((q @ k.mT * scale + bias).masked_fill(~mask, -torch.inf), -1)
    """

    content: bool = True
    bias: Bias | None = None
    scale: float | None = None
    softcap: float | None = None

    log = True

    def __post_init__(self) -> None:
        Checks.choice(self, "content", (True, False))
        Checks.instance(self, "bias", (Bias, type(None)), "a Bias such as Alibi(), or None")
        for name in ("scale", "softcap"):
            if getattr(self, name) is not None:
                Checks.number(self, name, lambda s: 0 < s < math.inf, "a positive number or None")
        if not self.content and self.bias is None:
            raise ArgumentError(
                "Softmax.bias", "a bias where content is False (Uniform('mean') has equal weights)", "None"
            )
        if not self.content and (self.scale is not None or self.softcap is not None):
            raise ArgumentError("Softmax.content", "True where scale or softcap is given", "False")

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("q", "k") if self.content else ()

    @property
    def per_edge(self) -> bool:  # type: ignore[override]
        return self.bias is not None and self.bias.per_edge

    def specs(self) -> tuple[TensorSpec, ...]:
        return () if self.bias is None else self.bias.specs()

    def prepare(self, operands: Operands) -> Operands:
        if not self.content:
            return operands
        q = operands.require("q")
        return operands.with_features(q * content_scale(self.scale, q), operands.require("k"))

    def scores(self, view: View, operands: Operands) -> Tensor:
        total: Tensor | None = None
        if self.content:
            total = view.dot(operands.require("q"), operands.require("k"))
            if self.softcap is not None:
                total = self.softcap * torch.tanh(total / self.softcap)
        if self.bias is not None:
            bias = self.bias.scores(view, operands)
            total = bias if total is None else total + bias
        assert total is not None
        return total


@description
@dataclass(frozen=True)
class Similarity(Weights):
    """w_ij = sim(q_i, k_j) / sum_j sim(q_i, k_j) for a positive function of s = scale q'k (or of the distance).

        "exponential"  exp(s): softmax            "polynomial"  (offset + s)^degree, even degree; `convert` gives its Kernel
        "gaussian"     exp(-scale |q - k|^2 / 2)  "cauchy"      1 / (1 + scale |q - k|^2)

    A function of one's own takes (q, k) of shapes that broadcast, (..., D), and returns (...); it must not be negative, and
    cannot be written as JSON. scale is head_dim^-0.5 unless given. Dense and graph only: nothing is factored.

    Reference:

        w = sim(q @ k.mT * scale) * mask;  w = w / w.sum(-1, keepdim=True)
    """

    function: Literal["exponential", "polynomial", "gaussian", "cauchy"] | Callable[[Tensor, Tensor], Tensor] = (
        "exponential"
    )
    degree: int = 2
    scale: float | None = None
    offset: float = 1.0

    reads = ("q", "k")

    def __post_init__(self) -> None:
        Checks.number(self, "offset", lambda c: 0 <= c < math.inf, "a number of at least 0")
        if not callable(self.function):
            Checks.choice(self, "function", ("exponential", "polynomial", "gaussian", "cauchy"))
        Checks.integer(self, "degree", 2)
        Checks.number(self, "degree", lambda n: n % 2 == 0, "an even degree, so that weights are not negative")
        if self.scale is not None:
            Checks.number(self, "scale", lambda s: 0 < s < math.inf, "a positive number or None")

    @property
    def log(self) -> bool:  # type: ignore[override]
        return self.function in ("exponential", "gaussian")

    def scores(self, view: View, operands: Operands) -> Tensor:
        q, k = operands.require("q"), operands.require("k")
        if callable(self.function):
            return view.pairwise(self.function, q, k)
        scale = content_scale(self.scale, q)
        s = view.dot(q, k) * scale
        if self.function == "exponential":
            return s
        if self.function == "polynomial":
            return (self.offset + s) ** self.degree
        squares = view.receiver((q * q).sum(-1)) + view.sender((k * k).sum(-1))
        distance = (scale * squares - 2 * s).clamp(min=0)
        return -distance / 2 if self.function == "gaussian" else 1 / (1 + distance)


@description
@dataclass(frozen=True)
class Kernel(Weights):
    """w_ij = phi(q_i)'phi(k_j) / sum_j phi(q_i)'phi(k_j): attention whose similarity factors, so it is also a recurrence.

    Args:
        feature_map: a FeatureMap, or its name: "elu1", "relu", "exp", "taylor2", "polynomial", "hedgehog", "favor".
        normalise: divide by the row's sum; no epsilon is added, and a row whose sum is 0 gives 0.
        decay: None, "scalar" (tensor `log_decay` (B, H, K)) or "feature" (`log_decay` (B, H, K, M)): feature f of sender j
            counts exp(sum of the log-gates of positions j + 1 ... i); gates <= 0; causal edges only.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs"; retention (Sun et al. 2023), gated linear attention (Yang et
    al. 2024) for decay.

    Reference:

        w = phi(q) @ phi(k).mT * mask;  w = w / w.sum(-1, keepdim=True)
    """

    feature_map: FeatureMap | str = "elu1"
    normalise: bool = True
    decay: Literal["scalar", "feature"] | None = None

    reads = ("q", "k")

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature_map", feature_map(self.feature_map))
        Checks.choice(self, "normalise", (True, False))
        Checks.choice(self, "decay", (None, "scalar", "feature"))
        if self.decay is not None and self.phi.running:
            raise ArgumentError(
                "Kernel.feature_map", "a map without a running centre where there is decay", str(self.phi)
            )

    @property
    def phi(self) -> FeatureMap:
        return feature_map(self.feature_map)

    @property
    def normalised(self) -> bool:  # type: ignore[override]
        return self.normalise

    @property
    def scores_causal_only(self) -> bool:  # type: ignore[override]
        return self.decay is not None

    def specs(self) -> tuple[TensorSpec, ...]:
        if self.decay is None:
            return self.phi.specs()
        dims = ("B", "H", "K") if self.decay == "scalar" else ("B", "H", "K", "M")
        gates = TensorSpec("log_decay", dims, "log of the gate that each position applies to the past, <= 0")
        return (gates, *self.phi.specs())

    def features(self, operands: Operands) -> tuple[Tensor, Tensor]:
        """phi(q) and phi(k); where rows are divided by their sum, each row of phi(q) up to a factor of its own."""
        q, factor = self.phi.query(operands.require("q"), operands.tensors)
        if factor is not None and not self.normalise:
            q = q * factor.exp()[..., None]
        return q, self.phi.key(operands.require("k"), operands.tensors)

    def prepare(self, operands: Operands) -> Operands:
        """phi(q), phi(k), and with decay the running sum of log-gates at every sender and receiver."""
        q, k = self.features(operands)
        if self.decay is None:
            return operands.with_features(q, k)
        at = operands.layout
        gates = summable(operands.named("log_decay"))
        if at.k_valid is not None:
            keep = at.k_valid[:, None, :] if self.decay == "scalar" else at.k_valid[:, None, :, None]
            gates = torch.where(keep, gates, 0)
        at_sender, at_receiver = running_gates(gates, at)
        tail = () if self.decay == "scalar" else ("M",)
        return operands.with_features(
            q, k, gates_q=(("B", "H", "Q", *tail), at_receiver), gates_k=(("B", "H", "K", *tail), at_sender)
        )

    def scores(self, view: View, operands: Operands) -> Tensor:
        q, k = operands.require("q"), operands.require("k")
        if self.decay is None:
            return self.phi.scores(view, q, k)
        gates_q, gates_k = operands.named("gates_q"), operands.named("gates_k")
        if self.decay == "scalar":
            return view.dot(q, k) * (view.receiver(gates_q) - view.sender(gates_k)).clamp(max=0).exp().to(q.dtype)
        ends = (torch.cat([x.to(g.dtype), g.expand(x.shape)], -1) for x, g in ((q, gates_q), (k, gates_k)))
        return view.pairwise(_gated_dot, *ends).to(q.dtype)


def summable(gates: Tensor) -> Tensor:
    """Log-gates in float64 where the device has it, and no lower than -1000, at which exp is 0 in every dtype.

    Decay is a difference of running sums: after a gate of -1e4 float32 would keep three digits of it, after -inf none.
    """
    wide = gates if gates.device.type == "mps" else gates.double()
    return wide.clamp(min=-1000.0)


def running_gates(gates: Tensor, at: Layout) -> tuple[Tensor, Tensor]:
    """Sums of log-gates (B, H, m, ...), in order of position, up to each sender and up to each receiver."""
    if not at.keys:
        return gates, gates.new_zeros(*gates.shape[:2], at.queries, *gates.shape[3:])
    k_pos, order = at.k_pos.sort(dim=-1, stable=True)
    rows = max(k_pos.shape[0], at.q_pos.shape[0])
    targets = at.q_pos.expand(rows, -1).contiguous()
    last = torch.searchsorted(k_pos.expand(rows, -1).contiguous(), targets, right=True) - 1

    def pick(x: Tensor, index: Tensor) -> Tensor:
        lead = x.shape[0] if index.shape[0] == 1 else index.shape[0]
        index = index.reshape(index.shape[0], 1, -1, *[1] * (x.dim() - 3))
        return x.expand(lead, *x.shape[1:]).gather(2, index.expand(lead, x.shape[1], -1, *x.shape[3:]))

    total = pick(gates, order).cumsum(2)
    return pick(total, order.argsort(-1)), pick(total, last.clamp(min=0))


def _gated_dot(a: Tensor, b: Tensor) -> Tensor:
    """sum_f q_f k_f exp(c_f(i) - c_f(j)) for a = [q, c(i)] and b = [k, c(j)]."""
    m = a.shape[-1] // 2
    decay = (a[..., m:] - b[..., m:]).clamp(max=0).exp()
    return (a[..., :m] * b[..., :m] * decay).sum(-1)


def content_scale(scale: float | None, q: Tensor) -> float:
    """The factor of q'k: the one given, or head_dim^-0.5."""
    return scale if scale is not None else max(q.shape[-1], 1) ** -0.5
