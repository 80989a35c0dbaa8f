"""One token of the most common streams without the machinery of a call: the same formulas, fewer operations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Causal, Edges, Hybrid, Kernel, Softmax, Weights, Window
from quadform.algebra._weights import content_scale, summable
from quadform.forms._evaluate import is_plain
from quadform.forms._normalise import divide
from quadform.forms.recurrent._quick_hybrid import hybrid_token, streams_quickly
from quadform.forms.recurrent._state import State
from quadform.forms.recurrent._token import declared, next_senders, wide


def quick_step(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    edges: Edges,
    weights: Weights,
    state: State,
    tensors: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, State] | None:
    """(y, state) of one token: a kernel or hybrid on Causal(), plain softmax on Causal() or a window; None for all else.

    None also where something does not fit, so that the ordinary way says what it is.
    """
    if not isinstance(q, Tensor) or not isinstance(k, Tensor) or not isinstance(v, Tensor) or type(state) is not State:
        return None
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or q.shape[2] != 1 or k.shape[2] != 1 or v.shape[2] != 1:
        return None
    mixer, way, limit = (_way if torch.compiler.is_compiling() else _known_way)(edges, weights)
    if way is None or state.mixer != mixer:
        return None
    batch, keys = k.shape[:2]
    same = q.dtype == k.dtype == v.dtype and q.device == k.device == v.device == state.length.device
    sizes = q.shape[0] == v.shape[0] == batch == state.batch and v.shape[1] == keys and q.shape[3] == k.shape[3]
    if not same or not sizes or not q.is_floating_point() or not q.numel() or not v.numel() or q.shape[1] % keys:
        return None
    if way == "softmax":
        found = (
            None if tensors else _softmax(q.reshape(batch, keys, -1, q.shape[3]), k, v, edges, weights, state, limit)
        )
    elif way == "hybrid":
        assert isinstance(weights, Hybrid)
        found = hybrid_token(q, k, v, weights, state, tensors or {})
    else:
        found = _kernel(q, k, v, weights, state.tensors, tensors or {})
    if found is None:
        return None
    y, after = found
    y = y.to(v.dtype).reshape(batch, q.shape[1], 1, v.shape[3])
    return y, State(state.kind, state.mixer, state.length + 1, after)


def _way(edges: Edges, weights: Weights) -> tuple[str, str | None, int | None]:
    """(the mixer as a state names it, how its token is computed, how many senders are kept)."""
    mixer = weights.__str__() + " on " + edges.__str__()  # a compiler traces this, and no f-string
    if type(weights) is Kernel and type(edges) is Causal:
        return mixer, None if weights.phi.running else "kernel", None
    if type(weights) is Hybrid and type(edges) is Causal:
        return mixer, "hybrid" if streams_quickly(weights) else None, None
    if type(weights) is Softmax and is_plain(weights):
        if type(edges) is Causal:
            return mixer, "softmax", None
        if type(edges) is Window and edges.is_causal and edges.dilation == 1:
            return mixer, "softmax", edges.left
    return mixer, None, None


_cached_way = lru_cache(maxsize=256)(_way)


def _known_way(edges: Edges, weights: Weights) -> tuple[str, str | None, int | None]:
    try:
        return _cached_way(edges, weights)
    except TypeError:  # a feature map of the caller's own that has no hash
        return _way(edges, weights)


def _kernel(
    q: Tensor, k: Tensor, v: Tensor, weights: Weights, state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> tuple[Tensor, Mapping[str, Tensor]] | None:
    """S = gate S + phi(k) v', z = gate z + phi(k), and what phi(q) reads from them.

    Query heads of a group share a state unless gates or the map's tensors are each head's own, see `sharing`.
    """
    assert isinstance(weights, Kernel)
    specs, share, dtype = weights.specs(), q.shape[1] // k.shape[1], wide(v[..., :0]).dtype
    if not declared(specs, tensors, q):
        return None
    if specs and share > 1:
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    q, k, v = q.reshape(*k.shape[:2], -1, q.shape[3]).to(dtype), k.to(dtype), v.to(dtype)
    phi, given = weights.phi, {name: x.to(dtype) for name, x in tensors.items()}
    f, factor = phi.query(q, given)
    if factor is not None and not weights.normalise:
        f = f * factor.exp()[..., None]
    g = phi.key(k, given)
    S, z = state["S"], state["z"]
    if S.dtype != dtype or S.shape != (*g.shape[:2], g.shape[3], v.shape[3]) or z.shape != S.shape[:3]:
        return None
    if weights.decay is not None:
        gate = summable(given["log_decay"]).exp().to(dtype)[:, :, 0]
        gate = gate[..., None] if weights.decay == "scalar" else gate
        S, z = gate[..., None] * S, gate * z
    S, z = torch.addcmul(S, g.mT, v), z + g[:, :, 0]
    y = f @ S
    return divide(y, f @ z[..., None]) if weights.normalise else y, {"S": S, "z": z}


def _softmax(
    q: Tensor, k: Tensor, v: Tensor, edges: Edges, weights: Weights, state: State, limit: int | None
) -> tuple[Tensor, Mapping[str, Tensor]] | None:
    """Softmax over all that is kept and the token itself."""
    assert isinstance(weights, Softmax)
    found = next_senders(k, v, state, limit, edges.sinks if isinstance(edges, Window) else 0)
    if found is None:
        return None
    mask, scale = found.valid[:, None, None, :], content_scale(weights.scale, q)
    y = F.scaled_dot_product_attention(wide(q), wide(found.keys), wide(found.values), attn_mask=mask, scale=scale)
    return y, found.after
