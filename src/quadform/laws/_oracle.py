"""The dense formula written out, in any dtype: the oracle in float64, and what plain PyTorch does in half precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from quadform.algebra import Edges, Operands, Via, Weights
from quadform.forms._call import Call, build_call
from quadform.forms._normalise import pair_weights
from quadform.forms._registry import FORMS
from quadform.forms._via import via
from quadform.laws._cases import Case
from quadform.laws._outcome import TOLERANCE, distance


def call_of(case: Case, inputs: Mapping[str, Tensor]) -> Call:
    """The validated call of a case, for questions that a form answers about it."""
    known = ("lengths", "key_mask", "positions", "grid")
    named = {name: inputs[name] for name in case.tensors}
    known_options = [case.options.get(name) for name in known]
    rest = {name: value for name, value in case.options.items() if name not in known}
    return build_call(
        inputs.get("q"), inputs.get("k"), inputs["v"], case.edges, case.weights, named, *known_options, **rest
    )


def resolved_edges(case: Case) -> Edges:
    """Edges as the forms see them: content edges are hashed and ranked once, in the dtype of the call."""
    return call_of(case, case.leaves(case.dtype)).resolved().edges


def formula(case: Case, inputs: Mapping[str, Tensor], edges: Edges) -> Tensor:
    """y of the dense formula in the dtype of the inputs, with no widening and no fused kernel.

    (torch has no inverse in half precision: there Nystrom's formula runs in float32 and is rounded.)
    """
    if isinstance(case.weights, Via) and case.weights.core and inputs["v"].dtype not in (torch.float32, torch.float64):
        return formula(case, {name: x.float() for name, x in inputs.items()}, edges).to(inputs["v"].dtype)
    call = dataclasses.replace(call_of(case, inputs), edges=edges)
    k = None if call.k is None else call.k.repeat_interleave(call.groups, 1)
    v = call.v.repeat_interleave(call.groups, 1)
    operands = Operands(call.q, k, v, call.layout, edges, call.heads, dict(call.tensors), call.dims)
    y = via(operands, case.weights, _plain) if isinstance(case.weights, Via) else _plain(operands, edges, case.weights)
    scale = inputs.get("row_scale")
    return y if scale is None else y * scale[..., None]


def _plain(operands: Operands, edges: Edges, weights: Weights) -> Tensor:
    """sum_j w_ij v_j with the whole matrix of weights."""
    view = edges.view(operands.layout, weights.per_edge)
    w = pair_weights(weights, view, weights.prepare(operands))
    return view.combine(w.expand(operands.batch, operands.heads, *w.shape[2:]).to(operands.v.dtype), operands.v)


def gradients(
    case: Case, run: Callable[[Mapping[str, Tensor]], Tensor], dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """(y, gradient of every input) for the case's cotangent; zero for an input that y does not read."""
    inputs = case.leaves(dtype, grad=True)
    y = run(inputs)
    if not y.requires_grad:
        return y, {name: torch.zeros_like(x) for name, x in inputs.items()}
    leaves = list(inputs.values())
    if case.cotangent is None:
        found: Any = torch.autograd.grad(y.sum(), leaves, allow_unused=True)
    else:
        found = torch.autograd.grad(y, leaves, case.cotangent.to(dtype), allow_unused=True)
    filled = (torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True))
    return y.detach(), dict(zip(inputs, filled, strict=True))


def accepting(case: Case, **options: Any) -> list[str]:
    """The forms that compute a case."""
    call = dataclasses.replace(call_of(case, case.leaves(case.dtype)), **options)
    return [name for name, form in FORMS.items() if form.refusal(call) is None]


def dims_of(case: Case) -> dict[str, tuple[str, ...]]:
    """Names of the dimensions of every input of a case."""
    specs = {spec.name: spec.dims for spec in case.weights.specs()}
    fixed = {
        "q": ("B", "H", "Q", "D"),
        "k": ("B", "H", "K", "D"),
        "v": ("B", "H", "K", "V"),
        "row_scale": ("B", "H", "Q"),
    }
    specs |= fixed | {"rotations": ("H", "R", "D", "S")}
    return {name: specs[name] for name in case.inputs()}


def bounds(case: Case, expected: Tensor, edges: Edges) -> float:
    """Law 1's tolerance of an output: fixed in float64 and float32, else twice plain PyTorch's error plus one ulp."""
    fixed = TOLERANCE.get(case.dtype)
    if fixed is not None:
        return fixed
    plain = formula(case, case.leaves(case.dtype), edges)
    return 2 * distance(plain, expected) + torch.finfo(case.dtype).eps
