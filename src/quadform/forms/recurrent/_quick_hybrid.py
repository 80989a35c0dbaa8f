"""One token of a hybrid of a window, its sinks and a kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from quadform.algebra import Hybrid, Window
from quadform.algebra._weights import content_scale
from quadform.forms.recurrent._state import State
from quadform.forms.recurrent._token import declared, next_senders, wide


def streams_quickly(weights: Hybrid) -> bool:
    """Whether the near edges are a window without gaps, and sinks."""
    return type(weights.near) is Window and weights.near.dilation == 1


def hybrid_token(
    q: Tensor, k: Tensor, v: Tensor, weights: Hybrid, state: State, tensors: Mapping[str, Tensor]
) -> tuple[Tensor, Mapping[str, Tensor]] | None:
    """Exact weights for the ring, the sinks and the token itself, and the sums of the far part as one more sender.

    What the ring gives up moves into the sums, unless it is a sink.
    """
    near, phi = weights.near, weights.far.phi
    assert isinstance(near, Window)
    specs, share, dtype = weights.far.specs(), q.shape[1] // k.shape[1], wide(v[..., :0]).dtype
    own = share if specs else 1  # query heads with sums of their own
    S, z = state.tensors.get("S"), state.tensors.get("z")
    lead = (k.shape[0], k.shape[1] * own, phi.features(k.shape[3]))
    if S is None or z is None or S.dtype != dtype or S.shape != (*lead, v.shape[3]) or z.shape != lead:
        return None
    if not declared(weights.specs(), tensors, q):
        return None
    found = next_senders(k, v, state, near.left, near.sinks)
    if found is None:
        return None
    given = {name: x.to(dtype) for name, x in tensors.items()}
    rows = q.to(dtype).reshape(k.shape[0], k.shape[1], share, q.shape[3])
    scores = (rows * content_scale(weights.scale, q)) @ found.keys.to(dtype).mT
    scores = scores.masked_fill(~found.valid[:, None, None, :], -torch.inf)

    far = q.to(dtype).reshape(*lead[:2], -1, q.shape[3])
    f, factor = phi.query(far, given)
    total = f @ z[..., None]
    some = total > 0
    total = torch.where(some, total, 1)
    log_total = torch.where(some, total.log(), -torch.inf)
    if factor is not None:
        log_total = log_total + factor[..., None]
    distant = torch.where(some, (f @ S) / total, 0).reshape(*rows.shape[:3], -1)
    log_total = log_total.reshape(*rows.shape[:3], 1)
    if "far_gain" in given:
        log_total = log_total + given["far_gain"].expand(q.shape[1]).reshape(1, k.shape[1], share, 1)
    w = torch.softmax(torch.cat([scores, log_total], -1), -1)
    y = w[..., :-1] @ found.values.to(dtype) + w[..., -1:] * distant

    leaving = found.leaving
    count = leaving["tail_valid"].shape[1]
    if count:
        position = found.position + torch.arange(count, device=k.device)
        gone = (leaving["tail_valid"] & (position >= near.sinks))[:, None, :, None]
        g, x = leaving["tail_k"].to(dtype), leaving["tail_v"].to(dtype)
        if own > 1:
            g, x = g.repeat_interleave(own, 1), x.repeat_interleave(own, 1)
        g = torch.where(gone, phi.key(g, given), 0)
        S, z = S + g.mT @ x, z + g.sum(2)
    return y, found.after | {"S": S, "z": z}
