"""Attention inside a band, with a few columns and rows beyond it: O(N (W + block)) for any weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Edges, Layout, Operands, Pairs, Weights
from quadform.algebra._reach import band_columns
from quadform.forms._blockwise import Block, blockwise
from quadform.forms._evaluate import aggregate


def is_banded(edges: Edges) -> bool:
    """Whether the edges lie in a bounded band, but for far columns and rows."""
    left, right = edges.band
    apart = edges.content or edges.by_slots or edges.by_index
    return left is not None and right is not None and not apart


def banded(
    operands: Operands, edges: Edges, weights: Weights, rows: int | None = None, extra: Operands | None = None
) -> Tensor:
    """y (B, H, n, Dv) of edges for which `is_banded` holds, exactly.

    Each block of receivers sees the senders that its band reaches (views of k and v, nothing is copied) and the far columns,
    gathered once. Receivers in far rows see all senders and are computed apart. Where positions are not indices (rows of
    several lengths, positions of the caller's own) each block sees all senders, far ones included. Edges that name senders by
    index are cut by their whole reach.
    """
    at = operands.layout
    if not at.keys:
        return F.pad(operands.v, (0, 0, 0, at.queries))
    prepared = weights.prepare(operands)
    shape = (operands.batch, operands.heads, at.queries, operands.v.shape[-1])
    blocks, far = _blocks(edges, at, rows), None if at.shift is None else edges.far_columns(at)
    if far is None or not is_banded(edges):

        def near(cut: Sequence[Operands]) -> Tensor:
            return aggregate(weights, edges.view(cut[0].layout), cut[0])

        y = blockwise([prepared], blocks, near, shape)
    else:
        extra = select_columns(prepared, far) if extra is None else weights.prepare(extra)
        everything = slice(0, extra.layout.keys)
        blocks = [Block(b.rows, (*b.columns, everything)) for b in blocks]

        def both(cut: Sequence[Operands]) -> Tensor:
            joined = join_columns(cut[0], cut[1])
            count = torch.cat([_without(cut[0].layout, edges, far), edges.view(cut[1].layout).count], -1)
            return aggregate(weights, Pairs(count, joined.layout), joined)

        y = blockwise([prepared, extra], blocks, both, shape)
    apart = None if at.shift is None else edges.far_rows(at)
    return y if apart is None or not is_banded(edges) else overwrite_rows(y, apart, prepared, edges, weights)


def _blocks(edges: Edges, at: Layout, rows: int | None) -> list[Block]:
    reach = edges.reach if edges.by_index else edges.band
    left, right = reach
    width = (left or 0) + (right or 0) + 1
    size = rows or min(max(width // 2, 64), 512)
    starts = range(0, at.queries, size)
    cuts = [slice(a, min(a + size, at.queries)) for a in starts]
    return [Block(cut, (band_columns(reach, at, cut),)) for cut in cuts]


def _without(at: Layout, edges: Edges, far: Tensor) -> Tensor:
    """The count of the near pairs, with the far columns taken out, since those are joined from the side."""
    count = edges.view(at).count
    apart = (at.k_pos[:, :, None] == far[:, None, :]).any(-1)[:, None, None, :]
    return count & ~apart if count.dtype == torch.bool else count * ~apart


def select_columns(operands: Operands, position: Tensor) -> Operands:
    """The senders at the given positions (Bp, c); a position that a row lacks is not valid."""
    at = operands.layout
    index = position - at.k_pos[:, :1]
    inside = (position >= 0) & (index >= 0) & (index < at.keys)
    index = index.clamp(0, at.keys - 1)
    valid = inside if at.k_valid is None else inside & _gather(at.k_valid, index, 1)
    layout = dataclasses.replace(at, k_pos=torch.where(inside, position, -1), k_valid=valid, shift=None)

    def pick(x: Tensor, names: tuple[str, ...]) -> Tensor:
        return _gather(x, index, names.index("K"))

    tensors = {n: pick(x, operands.dims[n]) if "K" in operands.dims[n] else x for n, x in operands.tensors.items()}
    k = None if operands.k is None else pick(operands.k, ("B", "H", "K", "M"))
    return dataclasses.replace(operands, k=k, v=pick(operands.v, ("B", "H", "K", "M")), layout=layout, tensors=tensors)


def select_rows(operands: Operands, index: Tensor) -> Operands:
    """The receivers with the given indices (Bp, r)."""
    at = operands.layout
    layout = dataclasses.replace(at, q_pos=_gather(at.q_pos, index, 1), shift=None, q_valid=None)
    tensors = {
        n: _gather(x, index, operands.dims[n].index("Q")) if "Q" in operands.dims[n] else x
        for n, x in operands.tensors.items()
    }
    q = None if operands.q is None else _gather(operands.q, index, 2)
    return dataclasses.replace(operands, q=q, layout=layout, tensors=tensors)


def _gather(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """x with dimension `axis` indexed by (Bp, c), row by row of the batch (dimension 0)."""
    rows = x.shape[0] if index.shape[0] == 1 else index.shape[0]
    shape = [rows, *x.shape[1:]]
    shape[axis] = index.shape[-1]
    view = [1] * x.dim()
    view[0], view[axis] = index.shape[0], index.shape[-1]
    return x.expand(rows, *x.shape[1:]).gather(axis, index.view(view).expand(shape))


def join_columns(a: Operands, b: Operands) -> Operands:
    """The senders of a followed by those of b, for the same receivers."""
    left, right = a.layout, b.layout
    rows = right.rows if left.rows == 1 else left.rows

    def valid(at: Layout) -> Tensor:
        ones = torch.ones(1, at.keys, dtype=torch.bool, device=at.k_pos.device)
        return (ones if at.k_valid is None else at.k_valid).expand(rows, -1)

    layout = dataclasses.replace(
        left,
        k_pos=torch.cat([left.k_pos.expand(rows, -1), right.k_pos.expand(rows, -1)], -1),
        k_valid=torch.cat([valid(left), valid(right)], -1),
        shift=None,
    )

    def cat(x: Tensor, y: Tensor, axis: int) -> Tensor:
        lead = x.shape[0] if y.shape[0] == 1 else y.shape[0]
        return torch.cat([x.expand(lead, *x.shape[1:]), y.expand(lead, *y.shape[1:])], axis)

    tensors = {n: cat(x, b.tensors[n], a.dims[n].index("K")) if "K" in a.dims[n] else x for n, x in a.tensors.items()}
    k = None if a.k is None or b.k is None else cat(a.k, b.k, 2)
    return dataclasses.replace(a, k=k, v=cat(a.v, b.v, 2), layout=layout, tensors=tensors)


def overwrite_rows(y: Tensor, position: Tensor, prepared: Operands, edges: Edges, weights: Weights) -> Tensor:
    """y with the receivers at the given positions computed against every sender."""
    at = prepared.layout
    if not at.queries or not position.shape[-1]:
        return y
    index = position - at.q_pos[:, :1]
    inside = (position >= 0) & (index >= 0) & (index < at.queries)
    picked = select_rows(prepared, index.clamp(0, at.queries - 1))
    rows = aggregate(weights, edges.view(picked.layout), picked)
    rows = rows.expand(*y.shape[:2], -1, -1)
    target = torch.where(inside, index, at.queries).expand(y.shape[0], -1)[:, None, :, None].expand_as(rows)
    return F.pad(y, (0, 0, 0, 1)).scatter(2, target, rows)[:, :, : at.queries]
