"""Kernel weights as a recurrence: sums over all senders, or a causal prefix carried from chunk to chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Causal, Layout, Operands
from quadform.algebra._weights import summable
from quadform.forms._blockwise import Block, blockwise
from quadform.forms._normalise import divide

CHUNK = 64
GROUP = 1 << 20  # pairs that are weighed at a time


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
    return read(q, Sums(k.mT @ v, k.sum(-2)[..., None]), normalise)


def read(q: Tensor, sums: Sums, normalise: bool) -> Tensor:
    """What receivers with features q (B, H, n, m) take from the sums: (B, H, n, Dv)."""
    y = q @ sums.S
    return divide(y, q @ sums.z) if normalise else y


def causal_prefix(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, shift: int, before: Sums, normalise: bool, chunk: int = CHUNK
) -> tuple[Tensor, Sums]:
    """(y, sums after the last sender) of a causal kernel, chunk by chunk.

    Inside a chunk pairs are weighed as a matrix; what lies before it is read from the sums. Some chunks are computed at a
    time. Time O(N (chunk + m) D), memory O(N D + N m D / chunk); the backward pass computes each group of chunks again.

    Args:
        q: (B, H, n, m) features of receivers; receiver i stands at sender i + shift >= 0.
        k: (B, H, N, m) features of senders, 0 for those that do not exist. v: (B, H, N, Dv).
        gates: log-gates (B, H, N, 1 or m), applied by each sender to all that came before it; or None.
        shift: see q.
        before: the sums carried in.

    Reference:

        for t in range(N):
            S, z = exp(g[t]) * S + outer(k[t], v[t]), exp(g[t]) * z + k[t]
            y[t] = q[t] @ S / (q[t] @ z)
    """
    queries, features = q.shape[2], k.shape[3]
    if queries == k.shape[2] == 1 and not shift:
        after = _next(k, v, gates, before)
        return read(q, after, normalise), after
    end = max(k.shape[2], queries + shift, 1)
    chunk = min(chunk, end)
    chunks = -(-end // chunk)
    missing = chunks * chunk - k.shape[2]
    k, v = (F.pad(x, (0, 0, 0, missing)) for x in (k, v))
    local = None
    if gates is not None:
        local = F.pad(summable(gates), (0, 0, 0, missing)).unflatten(2, (chunks, chunk)).cumsum(3).flatten(2, 3)
    starts, after = _chunk_sums(k, v, local, before, chunk)
    first, early = shift // chunk, shift % chunk
    q = F.pad(q, (0, 0, early, (chunks - first) * chunk - early - queries))
    inside = _bundle(q, k, v)
    if local is not None:
        rows = local[:, :, first * chunk :]
        inside = inside.with_features(q, k, gates_q=(("B", "H", "Q", "M"), rows), gates_k=(("B", "H", "K", "M"), local))
    width = 1 if local is None else local.shape[-1]
    group = max(GROUP // max(q.shape[0] * q.shape[1] * chunk * chunk * width, 1), 1)
    blocks = []
    for n in range(first, chunks, group):
        end = min(n + group, chunks)
        rows_here = slice((n - first) * chunk, (end - first) * chunk)
        blocks.append(Block(rows_here, (slice(n * chunk, end * chunk), slice(n * features, end * features))))

    def run(cut: Sequence[Operands]) -> Tensor:
        return _read_chunks(cut[0], cut[1], normalise, chunk)

    y = blockwise([inside, _bundle(q, starts.z, starts.S, q=False)], blocks, run, (*q.shape[:3], v.shape[-1]))
    return y[:, :, early : early + queries], after


def _next(k: Tensor, v: Tensor, gates: Tensor | None, before: Sums) -> Sums:
    """The sums after one more sender: k (B, H, 1, m), v (B, H, 1, Dv)."""
    if gates is not None:
        fade = summable(gates).exp().to(k.dtype).mT
        before = Sums(fade * before.S, fade * before.z)
    return Sums(before.S + k.mT * v, before.z + k.mT)


def _chunk_sums(k: Tensor, v: Tensor, local: Tensor | None, before: Sums, chunk: int) -> tuple[Sums, Sums]:
    """The sums before each chunk, one behind the other (B, H, chunks m, ...), and those after the last chunk."""
    kc, vc = (x.unflatten(2, (-1, chunk)) for x in (k, v))
    if local is None:
        added, summed = kc.mT @ vc, kc.sum(-2)[..., None]
        S = torch.cat([before.S[:, :, None], added], 2).cumsum(2)
        z = torch.cat([before.z[:, :, None], summed], 2).cumsum(2)
        return Sums(S[:, :, :-1].flatten(2, 3), z[:, :, :-1].flatten(2, 3)), Sums(S[:, :, -1], z[:, :, -1])
    gates = local.unflatten(2, (-1, chunk))
    ends = gates[:, :, :, -1:]
    kc = kc * (ends - gates).exp().to(k.dtype)
    added, summed, fades = kc.mT @ vc, kc.sum(-2)[..., None], ends.mT.exp().to(k.dtype)
    here, starts = before, []
    for n in range(kc.shape[2]):
        starts.append(here)
        fade = fades[:, :, n]
        here = Sums(fade * here.S + added[:, :, n], fade * here.z + summed[:, :, n])
    return Sums(torch.cat([s.S for s in starts], 2), torch.cat([s.z for s in starts], 2)), here


def _bundle(rows: Tensor, k: Tensor, v: Tensor, q: bool = True) -> Operands:
    """Tensors that `blockwise` can cut: receivers by rows, senders (or sums) by columns, both by index."""
    n, m = (torch.arange(x.shape[2], device=x.device)[None] for x in (rows, k))
    length = torch.full((1,), k.shape[2], device=k.device)
    layout = Layout(n, m, length, length, None, (k.shape[2],), None, False)
    return Operands(rows if q else None, k, v, layout, Causal(), k.shape[1])


def _read_chunks(inside: Operands, sums: Operands, normalise: bool, chunk: int) -> Tensor:
    """Some chunks: in each its own causal pairs, and the sums before it."""
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (inside.require("q"), inside.require("k"), inside.v))
    S, z = (x.unflatten(2, (q.shape[2], -1)) for x in (sums.v, sums.require("k")))
    mask = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    gates_q, gates_k = inside.optional("gates_q"), inside.optional("gates_k")
    if gates_q is None or gates_k is None:
        w = q @ k.mT
    else:
        gates_q, gates_k = (x.unflatten(2, (-1, chunk)) for x in (gates_q, gates_k))
        gap = torch.where(mask[..., None], gates_q[..., :, None, :] - gates_k[..., None, :, :], 0).exp().to(q.dtype)
        w = (q @ k.mT) * gap[..., 0] if gap.shape[-1] == 1 else torch.einsum("bhcim,bhcjm,bhcijm->bhcij", q, k, gap)
        q = q * gates_q.exp().to(q.dtype)
    w = torch.where(mask, w, 0)
    y = w @ v + q @ S
    return (divide(y, w.sum(-1, keepdim=True) + q @ z) if normalise else y).flatten(2, 3)
