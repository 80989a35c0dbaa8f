"""What a form is: it says whether it accepts a call, what the call would cost, and computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from quadform.algebra import Hybrid, Kernel
from quadform.forms._call import Call
from quadform.forms._rates import rates


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one call.

    Attributes:
        flops: floating-point operations of the arithmetic that the form carries out.
        bytes: memory traffic beyond the caches, reads and writes.
        state: bytes that a stream must keep between two calls; None where the form does not stream.
        steps: sequential small operations, each of which costs a fixed time.
        efficiency: share of the machine's rate that the form's inner loop reaches.
    """

    flops: float
    bytes: float
    state: int | None = None
    steps: float = 1.0
    efficiency: float = 1.0

    @property
    def seconds(self) -> float:
        """max(arithmetic, traffic) plus the fixed time of the steps, by the rates that `calibrate` measured or static ones."""
        speed = rates()
        work = max(self.flops / (speed.flops_per_second * self.efficiency), self.bytes / speed.bytes_per_second)
        return work + self.steps * speed.seconds_per_step


def score_width(call: Call) -> int:
    """How many products make the score of one pair: the dimension of q and k, or of the features of both."""
    if isinstance(call.weights, Kernel):
        return call.weights.phi.features(call.head_dim)
    if isinstance(call.weights, Hybrid):
        return call.head_dim + call.weights.far.phi.features(call.head_dim)
    return call.head_dim


class Form(Protocol):
    """One of the four ways to compute the operator."""

    name: str

    def refusal(self, call: Call) -> str | None:
        """Why this form does not compute the call, in a sentence; None where it does. Reads shapes and descriptions only."""

    def cost(self, call: Call) -> Cost:
        """The predicted cost of an accepted call."""

    def run(self, call: Call) -> tuple[Tensor, Any]:
        """(y of (B, H, n, Dv) in the dtype of v, and what else was asked for: weights or state, or None)."""
