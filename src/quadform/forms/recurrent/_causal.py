"""The causal kernel as a chunked recurrence: a forward and a backward pass that build no graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadform.forms.recurrent._gates import Decay
from quadform.forms.recurrent._pointwise import Pointwise
from quadform.forms.recurrent._whole import whole


@dataclass(frozen=True)
class Plan:
    """How a call is computed: `chunk` tokens at a time, the last chunk shorter; `phi` maps q and k, if they are no features."""

    normalise: bool
    chunk: int
    phi: Pointwise | None = None

    def chunks(self, n: int) -> list[slice]:
        return [slice(start, min(start + self.chunk, n)) for start in range(0, n, self.chunk)]

    def features(self, *rows: Tensor) -> tuple[Tensor, ...]:
        return rows if self.phi is None else tuple(self.phi.value(x) for x in rows)


def causal(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, S: Tensor, z: Tensor, plan: Plan
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, S, z after the last sender), receiver i at sender i: q, k (X, N, m), v (X, N, E), gates (X, N, 1 or m).

    With `plan.phi`, q and k are what it maps to features, chunk by chunk in both passes.

    Forward, chunk by chunk, with W = Q K' (times the decay) on and below the diagonal and S, z the sums before the chunk:

        n = W V + Q S;  d = W 1 + Q z;  y = n / d;  S += K' V;  z += K' 1

    Backward, from the last chunk to the first, with dS, dz the gradients of the sums after the chunk:

        dn = dy / d;  dd = -(dn * y) 1;  dW = dn V' + dd 1'
        dQ = dW K + dn S' + dd z';  dK = dW' Q + V dS' + 1 dz';  dV = W' dn + K dS;  dS += Q' dn;  dz += Q' dd

    A log-gate stands with the running sum b in q_i exp(b_i) and k_j exp(-b_j), so its gradient is the sum, over the rest of
    its chunk, of q dq - k dk, plus that of S dS + z dz at the chunk's end.

    Kept for the backward pass: the inputs, y, d and the sums before each chunk, O(N (m + E) + N m E / chunk) numbers.
    Second derivatives record the chunks by ordinary autograd.
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, gates, S, z)):
        y, S, z = _Causal.apply(plan, q, k, v, gates, S, z)
        return y, S, z
    return _forward(plan, q, k, v, gates, S, z, None)[:3]


@dataclass(frozen=True, eq=False)
class Kept:
    """The sums before each chunk: S (chunks, X, m, E), z (chunks, X, m, 1)."""

    S: Tensor
    z: Tensor


def _forward(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, S: Tensor, z: Tensor, kept: Kept | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y = v.new_empty(v.shape)
    d = v.new_empty(*v.shape[:2], 1 if plan.normalise else 0)
    S, z = S.clone(), z.clone()
    for n, at in enumerate(plan.chunks(v.shape[1])):
        if kept is not None:
            kept.S[n], kept.z[n] = S, z
        (qc, kc), vc = plan.features(q[:, at], k[:, at]), v[:, at]
        decay = None if gates is None else Decay(gates[:, at], q.dtype)
        w = torch.bmm(qc, kc.mT).tril_() if decay is None else decay.weigh(qc, kc)
        if decay is not None:
            qc, kc = qc * decay.start, kc * decay.end
        yc = torch.bmm(w, vc).baddbmm_(qc, S)
        if plan.normalise:
            dc = w.sum(-1, keepdim=True).baddbmm_(qc, z)
            d[:, at] = dc
            yc.mul_(_inverse(dc))
        y[:, at] = yc
        if decay is not None:
            S.mul_(decay.fade)
            z.mul_(decay.fade)
        S.baddbmm_(kc.mT, vc)
        z.add_(kc.sum(1)[..., None])
    return y, S, z, d


def _inverse(d: Tensor) -> Tensor:
    """1 / d, and 0 where d is 0."""
    return d.reciprocal().masked_fill_(d == 0, 0)


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, S: Tensor, z: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        chunks = len(plan.chunks(v.shape[1]))
        kept = Kept(S.new_empty(chunks, *S.shape), z.new_empty(chunks, *z.shape))
        y, S_after, z_after, d = _forward(plan, q, k, v, gates, S, z, kept)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, gates, S, z, y, d, kept.S, kept.z, S_after, z_after)
        return y, S_after, z_after

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dS: Tensor, dz: Tensor) -> tuple[Tensor | None, ...]:
        plan, saved = ctx.plan, ctx.saved_tensors
        if torch.is_grad_enabled():
            return (None, *_recorded(plan, saved[:6], ctx.needs_input_grad[1:], (dy, dS, dz)))
        q, k, v, gates, _, _, y, d, S, z, S_end, z_end = saved
        dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
        dg = None if gates is None else gates.new_empty(gates.shape)
        dS, dz = dS.clone(), dz.clone()
        for n, at in reversed(list(enumerate(plan.chunks(v.shape[1])))):
            dn, dd = dy[:, at], None
            if plan.normalise:
                dn = dn * _inverse(d[:, at])
                dd = (dn * y[:, at]).sum(-1, keepdim=True).neg_()
            (qc, kc), vc = plan.features(q[:, at], k[:, at]), v[:, at]
            decay = None if gates is None else Decay(gates[:, at], q.dtype)
            w = torch.bmm(qc, kc.mT).tril_() if decay is None else decay.weigh(qc, kc)
            dw = (torch.bmm(dn, vc.mT) if dd is None else torch.baddbmm(dd, dn, vc.mT)).tril_()
            into_q, into_k = torch.bmm(dn, S[n].mT), torch.baddbmm(dz.mT, vc, dS.mT)
            if dd is not None:
                into_q.addcmul_(dd, z[n].mT)
            if decay is None:
                late, early = qc, kc
                into_q.baddbmm_(dw, kc)
                into_k.baddbmm_(dw.mT, qc)
            else:
                late, early = qc * decay.start, kc * decay.end
                inner_q, inner_k = decay.backward(dw, qc, kc)
                into_q.mul_(decay.start).add_(inner_q)
                into_k.mul_(decay.end).add_(inner_k)
                assert dg is not None
                later = (S_end * dS).sum(-1) + (z_end * dz).sum(-1)
                dg[:, at] = _gate_gradient(qc, into_q, kc, into_k, later, dg.shape[-1], dg.dtype)
            dv[:, at] = torch.bmm(w.mT, dn).baddbmm_(early, dS)
            if plan.phi is not None:
                into_q.mul_(plan.phi.slope(qc))
                into_k.mul_(plan.phi.slope(kc))
            dq[:, at], dk[:, at] = into_q, into_k
            if decay is not None:
                dS.mul_(decay.fade)
                dz.mul_(decay.fade)
            dS.baddbmm_(late.mT, dn)
            if dd is not None:
                dz.baddbmm_(late.mT, dd)
            S_end, z_end = S[n], z[n]
        return None, dq, dk, dv, dg, dS, dz


def _gate_gradient(
    q: Tensor, dq: Tensor, k: Tensor, dk: Tensor, later: Tensor, width: int, dtype: torch.dtype
) -> Tensor:
    """(X, C, 1 or m): the gradient of a chunk's log-gates; `later` (X, m) is that of the sum of them all at the chunk's end."""
    local = q.to(dtype) * dq - k.to(dtype) * dk
    local[:, -1] += later
    if width == 1:
        local = local.sum(-1, keepdim=True)
    return local.flip(1).cumsum(1).flip(1)


def _recorded(plan: Plan, inputs: Any, needed: tuple[bool, ...], grads: tuple[Tensor, ...]) -> list[Tensor | None]:
    """The gradients with a graph of their own, so that they can be differentiated again."""
    wanted = [i for i, need in enumerate(needed) if need]
    q, k, v, gates, S, z = inputs
    with torch.enable_grad():
        q, k = plan.features(q, k)
        outputs = whole(q, k, v, gates, S, z, plan.normalise, plan.chunk)
    reached = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
    ends, into = [y for y, _ in reached], [g for _, g in reached]
    found = torch.autograd.grad(ends, [inputs[i] for i in wanted], into, create_graph=True, allow_unused=True)
    out: list[Tensor | None] = [None] * len(inputs)
    for i, g in zip(wanted, found, strict=True):
        out[i] = g
    return out
