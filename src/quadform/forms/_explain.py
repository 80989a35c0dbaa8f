"""explain: what each form would cost, or why it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from quadform.algebra import Edges, Weights
from quadform.forms._call import build_call
from quadform.forms._form import Cost
from quadform.forms._rates import STATIC, Calibration, calibration
from quadform.forms._registry import FORMS


@dataclass(frozen=True)
class Explanation:
    """Costs and refusals of one call, the form that "auto" takes, and the calibration that its times rest on, if any.

    `cache` is the size in bytes of all of the call's keys and values, and `keys` how many tokens they are of.
    """

    edges: Edges
    weights: Weights
    costs: Mapping[str, Cost]
    refusals: Mapping[str, str]
    calibration: Calibration | None = None
    cache: int = 0
    keys: int = 0

    @property
    def note(self) -> str | None:
        """That a stream's state is larger than the cache of keys and values that it replaces, where it is."""
        state = self.costs["recurrent"].state if "recurrent" in self.costs else None
        if state is None or not self.cache or state <= self.cache:
            return None
        enough = -(-state * self.keys // self.cache)
        return (
            f"the state, {state:,} B, is {state / self.cache:.1f} times a KV cache of {self.keys:,} tokens; "
            f"from {enough:,} tokens on it is the smaller one"
        )

    @property
    def source(self) -> str:
        """What the predicted times rest on: "static", or "calibrated" and the day."""
        return "static" if self.calibration is None else f"calibrated {self.calibration.date}"

    @property
    def chosen(self) -> str | None:
        """The accepting form with the least predicted time; None where all refuse."""
        return min(self.costs, key=lambda name: self.costs[name].seconds) if self.costs else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        forms: dict[str, Any] = {}
        for name in FORMS:
            if name in self.refusals:
                forms[name] = {"refusal": self.refusals[name]}
            else:
                cost = self.costs[name]
                forms[name] = {
                    "flops": cost.flops,
                    "bytes": cost.bytes,
                    "state_bytes": cost.state,
                    "seconds": cost.seconds,
                }
        rates = STATIC if self.calibration is None else self.calibration.rates
        return {
            "edges": str(self.edges),
            "weights": str(self.weights),
            "chosen": self.chosen,
            "note": self.note,
            "rates": {**asdict(rates), "source": self.source},
            "forms": forms,
        }

    def __str__(self) -> str:
        lines = [f"{self.weights} on {self.edges}"]
        for name in FORMS:
            mark = "*" if name == self.chosen else " "
            if name in self.refusals:
                lines.append(f"{mark} {name:<12} refuses: {self.refusals[name]}")
                continue
            cost = self.costs[name]
            state = "-" if cost.state is None else f"{cost.state:,} B"
            lines.append(
                f"{mark} {name:<12} {cost.flops / 1e9:10.3f} GFLOP {cost.bytes / 1e6:10.2f} MB"
                f"   state {state:>14}   {cost.seconds * 1e3:9.3f} ms predicted"
            )
        lines += [] if self.note is None else [f"  {self.note}"]
        return "\n".join([*lines, f"  times by rates: {self.source}"])


def explain(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    edges: Edges,
    weights: Weights,
    *,
    tensors: Mapping[str, Tensor] | None = None,
    lengths: Tensor | tuple[Tensor, Tensor] | None = None,
    key_mask: Tensor | None = None,
    positions: Tensor | tuple[Tensor, Tensor] | None = None,
    grid: tuple[int, ...] | None = None,
    dropout_p: float = 0.0,
    return_weights: bool = False,
) -> Explanation:
    """FLOPs, bytes, state size and predicted time of each form for a call, or the reason of its refusal.

    Arguments as in `attend`; nothing is computed, so tensors on the "meta" device do. Times come from a model that
    ranks forms, with the rates of a small CPU, or with this machine's where `calibrate` has measured them; they are not
    measurements of the call.

    Errors: ArgumentError as in `attend`.
    """
    options: dict[str, Any] = {"dropout_p": dropout_p, "return_weights": return_weights}
    call = build_call(q, k, v, edges, weights, tensors, lengths, key_mask, positions, grid, **options)
    refusals = {name: reason for name, form in FORMS.items() if (reason := form.refusal(call)) is not None}
    costs = {name: form.cost(call) for name, form in FORMS.items() if name not in refusals}
    both = (0 if call.k is None else call.head_dim) + call.v.shape[-1]
    cache = call.v.element_size() * call.v.shape[0] * call.v.shape[1] * call.layout.keys * both
    return Explanation(edges, weights, costs, refusals, calibration(), cache, call.layout.keys)
