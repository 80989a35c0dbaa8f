"""Kernel weights as a recurrence: sums over all senders, or a causal prefix carried from chunk to chunk."""

from __future__ import annotations

import dataclasses

import torch.nn.functional as F
from torch import Tensor

from quadform.algebra._weights import summable
from quadform.forms._normalise import divide
from quadform.forms.recurrent._causal import Plan, causal
from quadform.forms.recurrent._pointwise import Pointwise

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
    return read(q, Sums(k.mT @ v, k.sum(-2)[..., None]), normalise)


def read(q: Tensor, sums: Sums, normalise: bool) -> Tensor:
    """What receivers with features q (B, H, n, m) take from the sums: (B, H, n, Dv)."""
    y = q @ sums.S
    return divide(y, q @ sums.z) if normalise else y


def causal_prefix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor | None,
    shift: int,
    before: Sums,
    normalise: bool,
    chunk: int = CHUNK,
    phi: Pointwise | None = None,
) -> tuple[Tensor, Sums]:
    """(y, sums after the last sender) of a causal kernel, chunk by chunk.

    Inside a chunk pairs are weighed as a matrix; what lies before it is read from the sums. Time O(N (chunk + m) D), memory
    O(N (m + D) + N m D / chunk), with a backward pass that is written out (see `causal`).

    Args:
        q: (B, H, n, m) features of receivers; receiver i stands at sender i + shift >= 0.
        k: (B, H, N, m) features of senders, 0 for those that do not exist. v: (B, H, N, Dv).
        gates: log-gates (B, H, N, 1 or m), applied by each sender to all that came before it; or None.
        shift: see q.
        before: the sums carried in.
        phi: a map that q and k still need; only where each receiver stands at a sender, shift = 0 and n = N > 1.

    Reference:

        for t in range(N):
            S, z = exp(g[t]) * S + outer(k[t], v[t]), exp(g[t]) * z + k[t]
            y[t] = q[t] @ S / (q[t] @ z)
    """
    queries, lead = q.shape[2], k.shape[:2]
    if queries == k.shape[2] == 1 and not shift:
        after = _next(k, v, gates, before)
        return read(q, after, normalise), after
    gates = None if gates is None else summable(gates)
    if shift:
        before = _absorb(k[:, :, :shift], v[:, :, :shift], None if gates is None else gates[:, :, :shift], before)
        k, v, gates = k[:, :, shift:], v[:, :, shift:], None if gates is None else gates[:, :, shift:]
    missing = queries - k.shape[2]
    if missing > 0:
        k, v = (F.pad(x, (0, 0, 0, missing)) for x in (k, v))
        gates = None if gates is None else F.pad(gates, (0, 0, 0, missing))
    elif missing < 0:
        q = F.pad(q, (0, 0, 0, -missing))
    gates = None if gates is None else gates.flatten(0, 1)
    S, z = before.S.flatten(0, 1), before.z.flatten(0, 1)
    y, S, z = causal(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), gates, S, z, Plan(normalise, chunk, phi))
    y, S, z = (x.unflatten(0, lead) for x in (y, S, z))
    return y[:, :, :queries], Sums(S, z)


def _absorb(k: Tensor, v: Tensor, gates: Tensor | None, before: Sums) -> Sums:
    """The sums after senders that no receiver stands at."""
    if gates is not None:
        sums = gates.cumsum(2)
        last = sums[:, :, -1:]
        k, fade = k * (last - sums).exp().to(k.dtype), last.mT.exp().to(k.dtype)
        before = Sums(fade * before.S, fade * before.z)
    return Sums(before.S + k.mT @ v, before.z + k.sum(2)[..., None])


def _next(k: Tensor, v: Tensor, gates: Tensor | None, before: Sums) -> Sums:
    """The sums after one more sender: k (B, H, 1, m), v (B, H, 1, Dv)."""
    if gates is not None:
        fade = summable(gates).exp().to(k.dtype).mT
        before = Sums(fade * before.S, fade * before.z)
    return Sums(before.S + k.mT * v, before.z + k.mT)
