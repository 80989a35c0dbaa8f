"""init_state, prefill and step: the operator as a recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quadform.algebra import Edges, Kernel, Weights
from quadform.forms._attend import attend
from quadform.forms.recurrent._quick import quick_step
from quadform.forms.recurrent._state import State


def prefill(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    edges: Edges,
    weights: Weights,
    *,
    state: State | None = None,
    **call: Any,
) -> tuple[Tensor, State]:
    """(y (B, H, n, Dv), state) of n tokens that continue a stream; without a state they begin one.

    Arguments and errors as in `attend`, with as many queries as keys. The state that is given is not changed. Each row counts
    its own positions: `lengths` is right padding of this call's tokens, False in `key_mask` is left padding before a row's
    first kept token and a hole after it.

    A kernel on All() (cross attention) reduces the senders of the first call, any number of them, to a memory; later
    calls bring queries, and k and v of no tokens.

    Reference:

        y, state = attend(q, k, v, edges, weights, form="recurrent", state=state, return_state=True)
    """
    if state is not None and all(x is None for name, x in call.items() if name != "tensors"):
        quick = quick_step(q, k, v, edges, weights, state, call.get("tensors"))
        if quick is not None:
            return quick
    y, after = attend(q, k, v, edges, weights, form="recurrent", state=state, return_state=True, **call)
    return y, after


def step(
    q: Tensor | None, k: Tensor | None, v: Tensor, edges: Edges, weights: Weights, state: State, **call: Any
) -> tuple[Tensor, State]:
    """(y (B, H, 1, Dv), state) of one more token: `prefill` of q, k and v with N = 1.

    Reference:

        y, state = prefill(q, k, v, edges, weights, state=state)
    """
    return prefill(q, k, v, edges, weights, state=state, **call)


def init_state(
    edges: Edges,
    weights: Weights,
    *,
    batch: int,
    heads: int,
    head_dim: int,
    value_dim: int | None = None,
    kv_heads: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    tensors: dict[str, Tensor] | None = None,
) -> State:
    """The state of a stream that has seen nothing.

    Args:
        batch, heads, kv_heads, head_dim, value_dim: sizes B, H, Hk, D and Dv.
        tensors: the tensors that the mixer declares, of a call of no tokens; zeros stand for those that the weights
            declare and that are not given, since a state of no tokens does not depend on them.

    Errors: Refused where the mixer does not stream.

    Reference:

        y, state = prefill(q[:, :, :0], k[:, :, :0], v[:, :, :0], edges, weights)
    """
    kv_heads, value_dim = kv_heads or heads, value_dim or head_dim
    q = torch.empty(batch, heads, 0, head_dim, dtype=dtype, device=device)
    k = torch.empty(batch, kv_heads, 0, head_dim, dtype=dtype, device=device)
    v = torch.empty(batch, kv_heads, 0, value_dim, dtype=dtype, device=device)
    sizes = {"B": 1, "H": heads, "Q": 0, "K": 0, "D": head_dim, "G": 1, "T": getattr(edges, "taps", 0)}
    if isinstance(weights, Kernel):
        sizes["M"] = weights.phi.features(head_dim)
    declared = {
        spec.name: v.new_zeros([int(d) if d.isdigit() else sizes.get(d, 0) for d in spec.dims])
        for spec in weights.specs()
        if not spec.optional
    }
    tensors = declared | (tensors or {})
    return prefill(q, k if "k" in weights.reads or edges.content else None, v, edges, weights, tensors=tensors)[1]
