"""Exact near pairs and a kernel for all others: a band, and sums over what lies before and after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import All, Edges, Hybrid, Layout, Operands, Pairs
from quadform.forms._band import join_columns, overwrite_rows, select_columns
from quadform.forms._blockwise import Block, blockwise
from quadform.forms._normalise import divide
from quadform.forms.recurrent._kernel import Sums

CHUNK = 64


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
    keep = _outside(at, far)
    phi = torch.where(keep, prepared.named("far_k"), 0)
    left, right = weights.near.band
    assert left is not None and right is not None and at.shift is not None
    chunks = max(-(-at.queries // CHUNK), 1)
    sums = _sums_before(phi, v, at.shift - left, chunks, before)
    if not edges.is_causal:
        offset = at.keys - chunks * CHUNK - at.shift - right
        after = _sums_before(phi.flip(2), v.flip(2), offset, chunks, None)[::-1]
        sums = [Sums(a.S + b.S, a.z + b.z) for a, b in zip(sums, after, strict=True)]
    blocks = []
    for n in range(chunks):
        rows = slice(n * CHUNK, min((n + 1) * CHUNK, at.queries))
        low = min(max(n * CHUNK + at.shift - left, 0), at.keys)
        high = rows.stop + at.shift if edges.is_causal else (n + 1) * CHUNK + at.shift + right
        band = slice(low, max(min(high, at.keys), low))
        state = slice(n * phi.shape[-1], (n + 1) * phi.shape[-1])
        blocks.append(Block(rows, (band, state) if columns is None else (band, state, slice(0, columns.layout.keys))))
    bundles = [prepared, _stacked(sums, at)] + ([] if columns is None else [columns])

    def run(cut: Sequence[Operands]) -> Tensor:
        return _read(cut, edges, weights, far)

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


def _sums_before(phi: Tensor, v: Tensor, offset: int, chunks: int, before: Sums | None) -> list[Sums]:
    """For each chunk n, the sums over the senders with index < n * CHUNK + offset, and those carried in."""
    start = max(offset, 0)
    S = phi[:, :, :start].mT @ v[:, :, :start]
    z = phi[:, :, :start].sum(-2)[..., None]
    if before is not None:
        S, z = S + before.S, z + before.z
    need = (chunks - 1) * CHUNK
    pieces = []
    for x in (phi, v):
        x = F.pad(x[:, :, start:], (0, 0, max(-offset, 0), 0))[:, :, :need]
        pieces.append(F.pad(x, (0, 0, 0, need - x.shape[2])).unflatten(2, (chunks - 1, CHUNK)) if need else x)
    if not need:
        return [Sums(S, z)]
    added, summed = pieces[0].mT @ pieces[1], pieces[0].sum(-2)[..., None]
    S_all, z_all = torch.cat([S[:, :, None], added], 2).cumsum(2), torch.cat([z[:, :, None], summed], 2).cumsum(2)
    return [Sums(S_all[:, :, n], z_all[:, :, n]) for n in range(chunks)]


def _stacked(sums: list[Sums], at: Layout) -> Operands:
    S, z = torch.cat([s.S for s in sums], 2), torch.cat([s.z for s in sums], 2)
    layout = dataclasses.replace(at, k_pos=torch.arange(S.shape[2], device=S.device)[None], k_valid=None, shift=None)
    return Operands(None, z, S, layout, All(), S.shape[1])


def _read(cut: Sequence[Operands], edges: Edges, weights: Hybrid, far: Tensor | None) -> Tensor:
    band, sums = cut[0], cut[1]
    count = edges.view(band.layout).count
    if far is not None:
        count = count & ~(band.layout.k_pos[:, :, None] == far[:, None, :]).any(-1)[:, None, None, :]
    joined = band
    if len(cut) > 2:
        joined = join_columns(band, cut[2])
        count = torch.cat(
            [count.expand(joined.layout.rows, *count.shape[1:]), _rows(edges.view(cut[2].layout).count, joined)], -1
        )
    view = Pairs(count, joined.layout)
    scores = weights.scores(view, joined).masked_fill(~count, -torch.inf)
    q = band.named("far_q")
    distant, total = q @ sums.v, q @ sums.require("k")
    scale = band.optional("far_scale")
    shift = torch.zeros((), dtype=q.dtype, device=q.device) if scale is None else scale[..., None]
    log_total = torch.where(total > 0, torch.where(total > 0, total, 1).log(), -torch.inf) + shift
    top = log_total.detach()
    if scores.shape[-1]:
        top = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
    top = torch.where(top == -torch.inf, 0, top)
    w = torch.exp(scores - top)
    fade = torch.where(total > 0, torch.exp(shift - top), 0)
    return divide(w @ joined.v + fade * distant, w.sum(-1, keepdim=True) + fade * total)


def _rows(count: Tensor, like: Operands) -> Tensor:
    return count.expand(like.layout.rows, *count.shape[1:])
