"""Kernel weights as a recurrence: sums over all senders, or a causal prefix carried from chunk to chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Causal, Layout, Operands
from quadform.forms._blockwise import Block, blockwise
from quadform.forms._normalise import divide

CHUNK = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Sums:
    """S = sum_j phi(k_j) v_j' (B, H, m, Dv) and z = sum_j phi(k_j) (B, H, m, 1)."""

    S: Tensor
    z: Tensor


def empty_sums(k: Tensor, v: Tensor) -> Sums:
    """The sums over no sender, for features k (B, H, N, m)."""
    lead = (*k.shape[:2], k.shape[-1])
    return Sums(v.new_zeros(*lead, v.shape[-1]), v.new_zeros(*lead, 1))


def reduce_and_read(q: Tensor, k: Tensor, v: Tensor, normalise: bool) -> Tensor:
    """Every receiver reads the sums over all senders: q (B, H, n, m), k (B, H, N, m) with 0 for senders that do not exist.

    Reference:

        y = q @ (k.mT @ v) / (q @ k.sum(-2)[..., None])
    """
    y = q @ (k.mT @ v)
    return divide(y, q @ k.sum(-2)[..., None]) if normalise else y


def causal_prefix(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, at: Layout, before: Sums, normalise: bool, chunk: int = CHUNK
) -> tuple[Tensor, Sums]:
    """(y, sums after the last sender) of a causal kernel, chunk by chunk.

    Inside a chunk pairs are weighed as a matrix; what lies before it is read from the sums. Time O(N (chunk + m) D), memory
    O(N D + N m D / chunk); the backward pass computes each chunk again.

    Args:
        q: (B, H, n, m) features of receivers; receiver i stands at sender i + at.shift >= 0.
        k: (B, H, N, m) features of senders, 0 for those that do not exist. v: (B, H, N, Dv).
        gates: log-gates (B, H, N, 1 or m), applied by each sender to all that came before it; or None.
        at: their layout, with a shift.
        before: the sums carried in.

    Reference:

        for t in range(N):
            S, z = exp(g[t]) * S + outer(k[t], v[t]), exp(g[t]) * z + k[t]
            y[t] = q[t] @ S / (q[t] @ z)
    """
    count, features = k.shape[2], k.shape[3]
    blocks = max(-(-count // chunk), 1)
    local = None if gates is None else _within_chunks(gates, chunk)
    starts, after = _chunk_sums(k, v, local, before, chunk, blocks)
    shift = at.shift or 0
    cuts = []
    for n in range(blocks):
        rows = slice(max(n * chunk - shift, 0), min(max((n + 1) * chunk - shift, 0), at.queries))
        if n == blocks - 1:
            rows = slice(rows.start, at.queries)
        if rows.stop > rows.start:
            columns = slice(n * chunk, min((n + 1) * chunk, count))
            cuts.append(Block(rows, (columns, slice(n * features, (n + 1) * features))))
    main = _with_gates(Operands(q, k, v, at, Causal(), q.shape[1]), local, shift)
    states = _stacked(starts, at)

    def run(cut: Sequence[Operands]) -> Tensor:
        return _read_chunk(cut[0], cut[1], normalise)

    return blockwise([main, states], cuts, run, (*q.shape[:3], v.shape[-1])), after


def _within_chunks(gates: Tensor, chunk: int) -> Tensor:
    """Running sums of the log-gates that start anew in each chunk."""
    count = gates.shape[2]
    padded = F.pad(gates, (0, 0, 0, -count % chunk)).unflatten(2, (-1, chunk))
    return padded.cumsum(3).flatten(2, 3)[:, :, :count]


def _chunk_sums(
    k: Tensor, v: Tensor, local: Tensor | None, before: Sums, chunk: int, blocks: int
) -> tuple[list[Sums], Sums]:
    """The sums before each chunk, and after the last one."""
    missing = blocks * chunk - k.shape[2]
    kc, vc = (F.pad(x, (0, 0, 0, missing)).unflatten(2, (blocks, chunk)) for x in (k, v))
    ends: Tensor | None = None
    if local is not None:
        filled = torch.cat([local, local[:, :, -1:].expand(-1, -1, missing, -1)], 2) if k.shape[2] else local
        lc = (
            filled.unflatten(2, (blocks, chunk))
            if k.shape[2]
            else local.new_zeros(*local.shape[:2], 1, 1, local.shape[-1])
        )
        ends = lc[:, :, :, -1]
        kc = kc * (ends[:, :, :, None] - lc).exp()
    added, summed = kc.mT @ vc, kc.sum(-2)[..., None]
    if ends is None:
        total = (
            torch.cat([before.S[:, :, None], added], 2).cumsum(2),
            torch.cat([before.z[:, :, None], summed], 2).cumsum(2),
        )
        all_sums = [Sums(total[0][:, :, n], total[1][:, :, n]) for n in range(blocks + 1)]
        return all_sums[:-1], all_sums[-1]
    here, starts = before, []
    for n in range(blocks):
        starts.append(here)
        fade = ends[:, :, n, :, None].exp()
        here = Sums(fade * here.S + added[:, :, n], fade * here.z + summed[:, :, n])
    return starts, here


def _with_gates(main: Operands, local: Tensor | None, shift: int) -> Operands:
    if local is None:
        return main
    index = torch.arange(main.layout.queries, device=local.device) + shift
    at_receiver = local.index_select(2, index.clamp(max=max(local.shape[2] - 1, 0))) if local.shape[2] else local
    return main.with_features(
        main.q, main.k, gates_q=(("B", "H", "Q", "M"), at_receiver), gates_k=(("B", "H", "K", "M"), local)
    )


def _stacked(starts: list[Sums], at: Layout) -> Operands:
    """The sums before every chunk as the senders of a bundle, so that a block can cut its own out."""
    S, z = torch.cat([s.S for s in starts], 2), torch.cat([s.z for s in starts], 2)
    layout = dataclasses.replace(at, k_pos=torch.arange(S.shape[2], device=S.device)[None], k_valid=None, shift=None)
    return Operands(None, z, S, layout, Causal(), S.shape[1])


def _read_chunk(inside: Operands, sums: Operands, normalise: bool) -> Tensor:
    """One chunk: its own causal pairs, and the sums before it."""
    q, k = inside.require("q"), inside.require("k")
    mask = Causal().view(inside.layout).count
    gates_q, gates_k = inside.optional("gates_q"), inside.optional("gates_k")
    if gates_q is None or gates_k is None:
        w = q @ k.mT
    else:
        gap = torch.where(mask[..., None], gates_q[..., :, None, :] - gates_k[..., None, :, :], 0).exp()
        w = (q @ k.mT) * gap[..., 0] if gap.shape[-1] == 1 else torch.einsum("bhim,bhjm,bhijm->bhij", q, k, gap)
        q = q * gates_q.exp()
    w = torch.where(mask, w, 0)
    y = w @ inside.v + q @ sums.v
    return divide(y, w.sum(-1, keepdim=True) + q @ sums.require("k")) if normalise else y
