"""Any function of the two ends of an edge, in chunks of edges, with memory for one chunk.

Slicing under autograd would write a full-size gradient for each chunk; here a chunk's gradients are added in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from quadform.forms.graph._products import Structure, chunks

Score = Callable[..., Tensor]


def pairwise(function: Score, structure: Structure, a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
    """function(a_i, b_j, *more) at every edge (j -> i): a (B, H, n, M) and b (B, H, m, M) to (B, H, E).

    The backward pass computes each chunk again. A function that captures tensors with a gradient, and second derivatives,
    go through ordinary autograd, which is slower.

    Reference:

        s = function(a[:, :, receiver], b[:, :, sender], *more)
    """
    if torch.is_grad_enabled() and _captures(function, structure, a, b, *more):
        return _recorded(function, structure, a, b, *more)
    return _Pairwise.apply(function, structure, a, b, *more)


def _at(function: Score, structure: Structure, part: slice, a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
    receiver, sender = structure.receiver[part], structure.sender[part]
    return function(a.index_select(2, receiver), b.index_select(2, sender), *more)


def _captures(function: Score, structure: Structure, *inputs: Tensor) -> bool:
    """Whether the function reads tensors with a gradient that are not among its arguments; asked at one edge."""
    a, b, *more = (x.detach() for x in inputs)
    return _at(function, structure, slice(0, 1), a, b, *more).requires_grad


def _recorded(function: Score, structure: Structure, a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
    """The same for autograd to differentiate."""
    parts = [
        checkpoint(_at, function, structure, part, a, b, *more, use_reentrant=False) for part in chunks(structure, a)
    ]
    return torch.cat(parts, -1) if parts else _at(function, structure, slice(0, 0), a, b, *more)


class _Pairwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Score, structure: Structure, *inputs: Tensor) -> Tensor:
        ctx.function, ctx.structure = function, structure
        ctx.save_for_backward(*inputs)
        parts = [_at(function, structure, part, *inputs) for part in chunks(structure, inputs[0])]
        return torch.cat(parts, -1) if parts else _at(function, structure, slice(0, 0), *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        out: list[Tensor | None] = [None] * len(inputs)
        if torch.is_grad_enabled():
            with torch.enable_grad():
                y = _recorded(ctx.function, ctx.structure, *inputs)
            leaves = [inputs[i] for i in wanted]
            found = torch.autograd.grad(y, leaves, grad, create_graph=True, allow_unused=True, materialize_grads=True)
            for i, g in zip(wanted, found, strict=True):
                out[i] = g
            return (None, None, *out)
        sums = {i: torch.zeros_like(inputs[i], memory_format=torch.contiguous_format) for i in wanted}
        for part in chunks(ctx.structure, inputs[0]):
            _add_part(ctx.function, ctx.structure, part, inputs, grad[:, :, part], sums)
        for i, g in sums.items():
            out[i] = g
        return (None, None, *out)


def _add_part(
    function: Score,
    structure: Structure,
    part: slice,
    inputs: tuple[Tensor, ...],
    grad: Tensor,
    sums: dict[int, Tensor],
) -> None:
    """Adds the gradients of one chunk to the sums, those of a and b at the ends of its edges."""
    ends = structure.receiver[part], structure.sender[part]
    picked = [x.index_select(2, ends[i]) if i < 2 else x for i, x in enumerate(inputs)]
    leaves = [x.detach().requires_grad_(i in sums) for i, x in enumerate(picked)]
    with torch.enable_grad():
        y = function(*leaves)
    if not y.requires_grad:
        return
    found = torch.autograd.grad(y, [leaves[i] for i in sums], grad, allow_unused=True)
    for (i, total), g in zip(sums.items(), found, strict=True):
        if g is None:
            continue
        if i < 2:
            total.index_add_(2, ends[i], g)
        else:
            total.add_(g)
