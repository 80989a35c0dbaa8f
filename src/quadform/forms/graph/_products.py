"""Sampled and sparse products along an edge list, each the adjoint of the other, with no (B, H, E, D) tensor.

    sddmm:  s_e = a_i'b_j                for every edge e = (j -> i)
    spmm:   y_i = sum over e into i of  w_e v_j

The gradient of one is made of calls of the other, so both can be differentiated as often as one likes. (torch's own sparse
products differentiate through dense N x N matrices.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 21  # elements of a gathered chunk


@dataclass(frozen=True, eq=False)
class Structure:
    """E edges between `queries` receivers and `keys` senders; (E,) int64 each, in any order."""

    receiver: Tensor
    sender: Tensor
    queries: int
    keys: int

    @property
    def T(self) -> Structure:
        """The same edges with the roles exchanged."""
        return Structure(self.sender, self.receiver, self.keys, self.queries)


def sddmm(structure: Structure, a: Tensor, b: Tensor) -> Tensor:
    """a_i'b_j at every edge: a (B, H, n, M) and b (B, H, m, M) to (B, H, E).

    Reference:

        s = (a[:, :, receiver] * b[:, :, sender]).sum(-1)
    """
    return _Sddmm.apply(structure, a, b)


def spmm(structure: Structure, w: Tensor, v: Tensor) -> Tensor:
    """Weighted sums over the edges into each receiver: w (B, H, E) and v (B, H, m, D) to (B, H, n, D).

    Edges are added in their order, so the result is the same bits every time.

    Reference:

        y = torch.zeros(B, H, n, D).index_add(2, receiver, w[..., None] * v[:, :, sender])
    """
    return _Spmm.apply(structure, w, v)


class _Sddmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, structure: Structure, a: Tensor, b: Tensor) -> Tensor:
        ctx.structure = structure
        ctx.save_for_backward(a, b)
        parts = [
            (a.index_select(2, structure.receiver[c]) * b.index_select(2, structure.sender[c])).sum(-1)
            for c in _chunks(structure, a)
        ]
        return torch.cat(parts, -1) if parts else a.new_zeros(*a.shape[:2], 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        structure: Structure = ctx.structure
        grad_a = spmm(structure, grad, b) if ctx.needs_input_grad[1] else None
        grad_b = spmm(structure.T, grad, a) if ctx.needs_input_grad[2] else None
        return None, grad_a, grad_b


class _Spmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, structure: Structure, w: Tensor, v: Tensor) -> Tensor:
        ctx.structure = structure
        ctx.save_for_backward(w, v)
        y = v.new_zeros(*v.shape[:2], structure.queries, v.shape[-1])
        for c in _chunks(structure, v):
            y.index_add_(2, structure.receiver[c], w[:, :, c, None] * v.index_select(2, structure.sender[c]))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        w, v = ctx.saved_tensors
        structure: Structure = ctx.structure
        grad_w = sddmm(structure, grad, v) if ctx.needs_input_grad[1] else None
        grad_v = spmm(structure.T, w, grad) if ctx.needs_input_grad[2] else None
        return None, grad_w, grad_v


def _chunks(structure: Structure, like: Tensor) -> list[slice]:
    """Slices of the edges whose gathered features stay below CHUNK elements."""
    edges = structure.receiver.numel()
    size = max(CHUNK // max(like.shape[0] * like.shape[1] * like.shape[-1], 1), 1)
    return [slice(first, min(first + size, edges)) for first in range(0, edges, size)]
