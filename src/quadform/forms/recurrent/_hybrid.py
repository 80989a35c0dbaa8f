"""Exact near pairs and a kernel for all others: a band, and sums over what lies before and after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import All, Edges, Global, Hybrid, Layout, Operands, Or, Pairs, Window
from quadform.forms._band import overwrite_rows, select_columns
from quadform.forms._blockwise import Block, blockwise
from quadform.forms.recurrent._kernel import Sums, empty_sums

CHUNK = 64  # receivers at a time, at least


def hybrid(
    prepared: Operands, edges: Edges, weights: Hybrid, before: Sums | None = None, extra: Operands | None = None
) -> Tensor:
    """y of Hybrid weights on Causal() or All(), in time O(N (band + m) D).

    Each chunk of receivers sees three sets of senders that never overlap, so nothing is subtracted: the band around it (near
    pairs exactly, the rest by the kernel), the far columns of the near edges such as sinks, and the sums over all senders
    before the band (and, on All(), after it). One stabiliser max(largest score, log of the far sum) serves a row.

    Args:
        prepared: prepared operands whose layout has a shift; senders that do not exist are marked in k_valid.
        before: sums (S, z) over senders that came before these and lie outside every band here.
        extra: the far columns, prepared, where they are not senders of `prepared`.
    """
    at, v = prepared.layout, prepared.v
    if not at.keys and before is None:
        return F.pad(v, (0, 0, 0, at.queries))
    far = weights.near.far_columns(at)
    columns = None
    if far is not None:
        columns = select_columns(prepared, far) if extra is None else extra
    phi = prepared.named("far_k")
    if at.k_valid is not None or far is not None:
        phi = torch.where(_outside(at, far), phi, 0)
    prepared = prepared.with_features(prepared.q, prepared.k, far_k=(("B", "H", "K", "M"), phi))
    left, right = weights.near.band
    assert left is not None and right is not None and at.shift is not None
    chunk = min(max((left + right) // 2, CHUNK), 4 * CHUNK)
    chunks = max(-(-at.queries // chunk), 1)
    sums = _sums_before(phi, v, at.shift - left, chunks, chunk, before)
    if not edges.is_causal:
        offset = at.keys - chunks * chunk - at.shift - right
        after = _sums_before(phi.flip(2), v.flip(2), offset, chunks, chunk, None)[::-1]
        sums = [Sums(a.S + b.S, a.z + b.z) for a, b in zip(sums, after, strict=True)]
    blocks = []
    for n in range(chunks):
        rows = slice(n * chunk, min((n + 1) * chunk, at.queries))
        low = min(max(n * chunk + at.shift - left, 0), at.keys)
        high = rows.stop + at.shift if edges.is_causal else (n + 1) * chunk + at.shift + right
        band = slice(low, max(min(high, at.keys), low))
        state = slice(n * phi.shape[-1], (n + 1) * phi.shape[-1])
        blocks.append(Block(rows, (band, state) if columns is None else (band, state, slice(0, columns.layout.keys))))
    bundles = [prepared, _stacked(sums, at)] + ([] if columns is None else [columns])
    corner = chunk if _solid(weights.near) else None

    def run(cut: Sequence[Operands]) -> Tensor:
        return _read(cut, edges, weights, far, corner)

    y = blockwise(bundles, blocks, run, (*v.shape[:2], at.queries, v.shape[-1]))
    apart = weights.near.far_rows(at)
    return y if apart is None else overwrite_rows(y, apart, prepared, edges, weights)


def far_sums(prepared: Operands, weights: Hybrid, keep: Tensor) -> Sums:
    """The sums over the senders that `keep` (B, N) marks and that are no far columns."""
    at = prepared.layout
    far = keep[:, None, :, None] & _outside(at, weights.near.far_columns(at))
    phi = torch.where(far, prepared.named("far_k"), 0)
    return Sums(phi.mT @ prepared.v, phi.sum(-2)[..., None])


def _outside(at: Layout, far: Tensor | None) -> Tensor:
    """(Bp, 1, N, 1): senders that exist and are no far column."""
    keep = torch.ones_like(at.k_pos, dtype=torch.bool) if at.k_valid is None else at.k_valid
    if far is not None:
        keep = keep & ~(at.k_pos[:, :, None] == far[:, None, :]).any(-1)
    return keep[:, None, :, None]


def _solid(near: Edges) -> bool:
    """Whether every pair inside the band is near, so that far ones lie in the corners of a block alone."""
    if isinstance(near, Or):
        return all(_solid(part) or isinstance(part, Global) for part in (near.left, near.right))
    return isinstance(near, Window) and near.dilation == 1


def _sums_before(phi: Tensor, v: Tensor, offset: int, chunks: int, chunk: int, before: Sums | None) -> list[Sums]:
    """For each n < chunks, the sums over the senders with index < n * chunk + offset, and those carried in."""
    early = min(max(-(offset // chunk), 0), chunks)  # chunks that no sender precedes
    here = empty_sums(phi, v) if before is None else before
    out = [here] * early
    if early == chunks:
        return out
    start, count = offset + early * chunk, chunks - early - 1
    first, tail = phi[:, :, :start], v[:, :, :start]
    here = Sums(here.S + first.mT @ tail, here.z + first.sum(-2)[..., None])
    if not count:
        return [*out, here]
    need = count * chunk
    pieces = []
    for x in (phi, v):
        x = x[:, :, start : start + need]
        x = F.pad(x, (0, 0, 0, need - x.shape[2])) if x.shape[2] < need else x
        pieces.append(x.unflatten(2, (count, chunk)))
    added, summed = pieces[0].mT @ pieces[1], pieces[0].sum(-2)[..., None]
    out.append(here)
    for S, z in zip(added.unbind(2), summed.unbind(2), strict=True):
        here = Sums(here.S + S, here.z + z)
        out.append(here)
    return out


def _stacked(sums: list[Sums], at: Layout) -> Operands:
    S, z = torch.cat([s.S for s in sums], 2), torch.cat([s.z for s in sums], 2)
    layout = dataclasses.replace(at, k_pos=torch.arange(S.shape[2], device=S.device)[None], k_valid=None, shift=None)
    return Operands(None, z, S, layout, All(), S.shape[1])


def _read(cut: Sequence[Operands], edges: Edges, weights: Hybrid, far: Tensor | None, corner: int | None) -> Tensor:
    """One block of receivers: near pairs by exp, far pairs of the band and the sums before it by features, and far columns.

    Where `corner` is given, the band's far pairs lie in its first `corner` columns, and off causal edges in its last ones.
    """
    band, sums = cut[0], cut[1]
    at, q, phi = band.layout, band.named("far_q"), band.named("far_k")
    count = edges.view(at).count
    if far is not None:
        count = count & ~(at.k_pos[:, :, None] == far[:, None, :]).any(-1)[:, None, None, :]
    member = Pairs(count, at).member(weights.near)
    near, beyond = count & member, count & ~member
    scores = band.require("q") @ band.require("k").mT + torch.where(near, 0.0, -torch.inf).to(q.dtype)
    distant, total = q @ sums.v, q @ sums.require("k")
    for columns in _corners(at.keys, corner, edges):
        w = torch.where(beyond[..., columns], q @ phi[:, :, columns].mT, 0)
        distant, total = distant + w @ band.v[:, :, columns], total + w.sum(-1, keepdim=True)
    some = total > 0
    total = torch.where(some, total, 1)
    scale = band.optional("far_scale")
    log_total = total.log() if scale is None else total.log() + scale[..., None]
    log_total = torch.where(some, log_total, -torch.inf)
    every, v = [scores], band.v
    alive = near.any(-1, keepdim=True) | (log_total > -torch.inf)
    if len(cut) > 2:
        view = edges.view(cut[2].layout)
        every.append(weights.scores(view, cut[2]).masked_fill(~(view.count > 0), -torch.inf))
        v = torch.cat([v, cut[2].v], 2)
        alive = alive | (every[1] > -torch.inf).any(-1, keepdim=True)
    w = torch.softmax(torch.cat([*every, torch.where(alive, log_total, 0)], -1), -1)  # the far sum is one more sender
    return w[..., :-1] @ v + w[..., -1:] * torch.where(alive & some, distant / total, 0)


def _corners(keys: int, corner: int | None, edges: Edges) -> list[slice]:
    """The columns of a block's band among which its far pairs are."""
    if corner is None or keys <= (corner if edges.is_causal else 2 * corner):
        return [slice(0, keys)]
    return [slice(0, corner)] if edges.is_causal else [slice(0, corner), slice(keys - corner, keys)]
