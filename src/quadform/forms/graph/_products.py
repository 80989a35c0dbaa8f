"""Sampled and sparse products along an edge list, each the adjoint of the other, with no (B, H, E, D) tensor.

    sddmm:  s_e = a_i'b_j                for every edge e = (j -> i)
    spmm:   y_i = sum over e into i of  w_e v_j

The gradient of one is made of calls of the other, so both can be differentiated as often as one likes. (torch's own sparse
products differentiate through dense N x N matrices.)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import EdgeList

CHUNK = 1 << 18  # elements of a gathered chunk: what stays in a core's cache


@dataclass(frozen=True, eq=False)
class Structure:
    """E edges between `queries` receivers and `keys` senders; (E,) int64 each, in any order."""

    receiver: Tensor
    sender: Tensor
    queries: int
    keys: int

    @cached_property
    def T(self) -> Structure:
        """The same edges with the roles exchanged."""
        return Structure(self.sender, self.receiver, self.keys, self.queries)

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """(row pointers (n + 1,), columns (E,), order (E,) that sorts by receiver or None where they are sorted)."""
        ordered = bool((self.receiver[1:] >= self.receiver[:-1]).all())
        order = None if ordered else torch.argsort(self.receiver, stable=True)
        columns = self.sender if order is None else self.sender[order]
        pointers = self.receiver.new_zeros(self.queries + 1)
        pointers[1:] = torch.bincount(self.receiver, minlength=self.queries).cumsum(0)
        small = torch.int32 if max(self.receiver.numel(), self.keys) < 2**31 else torch.int64
        return pointers.to(small), columns.to(small), order

    def matrix(self, values: Tensor) -> Tensor:
        """The sparse matrix (n, m) of values (E,) in the sorted order."""
        _beta()
        pointers, columns, _ = self.rows
        return torch.sparse_csr_tensor(pointers, columns, values, (self.queries, self.keys), check_invariants=False)


@cache
def _beta() -> None:
    """Takes torch's remark that CSR is in beta, made once a process, so that it does not reach the user."""
    index = torch.zeros(2, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        torch.sparse_csr_tensor(index, index[:0], torch.zeros(0), (1, 1), check_invariants=False)


_STRUCTURES: WeakKeyDictionary[EdgeList, Structure] = WeakKeyDictionary()


def structure_of(edges: EdgeList) -> Structure:
    """The structure of an edge list; its sorted forms live as long as the list.

    Where some edge leads to the zero sender beyond a border, that is one more sender.
    """
    if edges not in _STRUCTURES:
        keys = edges.keys + bool((edges.sender == edges.keys).any())
        _STRUCTURES[edges] = Structure(edges.receiver, edges.sender, edges.queries, keys)
    return _STRUCTURES[edges]


def _by_rows(x: Tensor) -> bool:
    """Whether torch has sparse matrix products for this tensor."""
    return x.device.type == "cpu" and torch.backends.mkl.is_available()


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
        some = 0 not in (*a.shape, structure.receiver.numel())
        if (
            some and structure.receiver.numel() <= structure.queries * structure.keys and _by_rows(a)
        ):  # else torch refuses
            return _sampled(structure, a, b)
        parts = [
            (a.index_select(2, structure.receiver[c]) * b.index_select(2, structure.sender[c])).sum(-1)
            for c in chunks(structure, a)
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
        return _summed(structure, w, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        w, v = ctx.saved_tensors
        structure: Structure = ctx.structure
        grad_w = sddmm(structure, grad, v) if ctx.needs_input_grad[1] else None
        grad_v = spmm(structure.T, w, grad) if ctx.needs_input_grad[2] else None
        return None, grad_w, grad_v


def _sampled(structure: Structure, a: Tensor, b: Tensor) -> Tensor:
    """sddmm by a sampled matrix product for each row of the batch and each head."""
    order = structure.rows[2]
    pattern = structure.matrix(a.new_zeros(structure.receiver.numel()))
    out = a.new_empty(a.shape[0] * a.shape[1], structure.receiver.numel())
    for i, (x, y) in enumerate(zip(a.flatten(0, 1), b.flatten(0, 1), strict=True)):
        values = torch.sparse.sampled_addmm(pattern, x, y.T, beta=0.0).values()
        if order is None:
            out[i] = values
        else:
            out[i, order] = values
    return out.unflatten(0, a.shape[:2])


def _summed(structure: Structure, w: Tensor, v: Tensor) -> Tensor:
    """spmm for each row of the batch and each head: a sparse matrix product, or a sum over bags of rows of v."""
    out = v.new_empty(v.shape[0] * v.shape[1], structure.queries, v.shape[-1])
    if 0 in (*out.shape, structure.receiver.numel()):
        return out.zero_().unflatten(0, v.shape[:2])
    pointers, columns, order = structure.rows
    product = _by_rows(v)
    for i, (x, y) in enumerate(zip(w.flatten(0, 1), v.flatten(0, 1), strict=True)):
        x = x.contiguous() if order is None else x.index_select(0, order)
        if product:
            torch.mm(structure.matrix(x), y, out=out[i])
        else:
            out[i] = F.embedding_bag(
                columns, y.contiguous(), pointers, mode="sum", per_sample_weights=x, include_last_offset=True
            )
    return out.unflatten(0, v.shape[:2])


def chunks(structure: Structure, like: Tensor) -> list[slice]:
    """Slices of the edges whose gathered features stay below CHUNK elements."""
    edges = structure.receiver.numel()
    size = max(CHUNK // max(like.shape[0] * like.shape[1] * like.shape[-1], 1), 1)
    return [slice(first, min(first + size, edges)) for first in range(0, edges, size)]
