"""One token of the most common streams without the machinery of a call: the same formulas, fewer operations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Causal, Edges, Kernel, Softmax, TensorSpec, Weights, Window
from quadform.algebra._weights import content_scale, summable
from quadform.forms._evaluate import is_plain
from quadform.forms._normalise import divide
from quadform.forms.recurrent._buffer import Placed, extend, shareable
from quadform.forms.recurrent._state import State

AXES = {"tail_k": 2, "tail_v": 2, "tail_valid": 1}


def quick_step(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    edges: Edges,
    weights: Weights,
    state: State,
    tensors: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, State] | None:
    """(y, state) of one token of a kernel on Causal(), or of plain softmax on Causal() or a window; None for all else.

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
    if not same or not sizes or not q.is_floating_point() or not keys or q.shape[1] % keys:
        return None
    if way == "softmax":
        found = (
            None if tensors else _softmax(q.reshape(batch, keys, -1, q.shape[3]), k, v, edges, weights, state, limit)
        )
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


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _kernel(
    q: Tensor, k: Tensor, v: Tensor, weights: Weights, state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> tuple[Tensor, Mapping[str, Tensor]] | None:
    """S = gate S + phi(k) v', z = gate z + phi(k), and what phi(q) reads from them.

    Query heads of a group share a state unless gates or the map's tensors are each head's own, see `sharing`.
    """
    assert isinstance(weights, Kernel)
    specs, share, dtype = weights.specs(), q.shape[1] // k.shape[1], _wide(v[..., :0]).dtype
    if not _declared(specs, tensors, q):
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


def _declared(specs: tuple[TensorSpec, ...], tensors: Mapping[str, Tensor], q: Tensor) -> bool:
    """Whether a call of one token passes what the weights declare, in the shapes that they declare."""
    if not specs:
        return not tensors
    known = {spec.name: spec for spec in specs}
    if not all(name in known for name in tensors):
        return False
    sizes = {"B": q.shape[0], "H": q.shape[1], "K": 1, "D": q.shape[3]}
    for name, spec in known.items():
        if name not in tensors:
            if not spec.optional:
                return False
            continue
        x = tensors[name]
        if x.dim() != len(spec.dims) or x.device != q.device or not x.is_floating_point():
            return False
        for size, dim in zip(x.shape, spec.dims, strict=True):
            expected = int(dim) if dim.isdigit() else sizes.get(dim, size)
            if size != expected and not (dim in ("B", "H") and size == 1):
                return False
    return True


def _softmax(
    q: Tensor, k: Tensor, v: Tensor, edges: Edges, weights: Weights, state: State, limit: int | None
) -> tuple[Tensor, Mapping[str, Tensor]] | None:
    """Softmax over all that is kept and the token itself; then the last `limit` are kept, and the sinks."""
    assert isinstance(weights, Softmax)
    tensors, sinks = state.tensors, edges.sinks if isinstance(edges, Window) else 0
    new = {"tail_k": k, "tail_v": v, "tail_valid": torch.ones(k.shape[0], 1, dtype=torch.bool, device=k.device)}
    if not all(name in tensors and _follows(tensors[name], x) for name, x in new.items()):
        return None
    if sinks and not _has_sinks(tensors, new, sinks):
        return None
    if limit != 0 and shareable(tensors, new):
        place = extend(tensors, new, AXES)
        everything = place.views()
        size = place.end - place.start
        kept = place if limit is None else place.last(min(limit, size))
        after: dict[str, Tensor] = Placed(everything if kept is place else kept.views(), kept)
    else:
        everything = {name: torch.cat([tensors[name], x], AXES[name]) for name, x in new.items()}
        size = everything["tail_valid"].shape[1]
        start = 0 if limit is None else max(size - limit, 0)
        cut = {name: x.narrow(AXES[name], start, size - start) for name, x in everything.items()}
        after = (
            {name: x.clone(memory_format=torch.contiguous_format) for name, x in cut.items()} if start else everything
        )
    senders = [everything[name] for name in AXES]
    if limit is not None and sinks:
        first, visible = _sinks(new, state, limit)
        after = after | first
        senders = [torch.cat([tensors["sink_k"], senders[0]], 2), torch.cat([tensors["sink_v"], senders[1]], 2),
                   torch.cat([visible, senders[2]], 1)]  # fmt: skip
    keys, values, valid = senders
    scale = content_scale(weights.scale, q)
    y = F.scaled_dot_product_attention(
        _wide(q), _wide(keys), _wide(values), attn_mask=valid[:, None, None, :], scale=scale
    )
    return y, after


def _has_sinks(tensors: Mapping[str, Tensor], new: Mapping[str, Tensor], sinks: int) -> bool:
    pairs = {f"sink_{name.removeprefix('tail_')}": x for name, x in new.items()}
    fit = all(name in tensors and _follows(tensors[name], x) for name, x in pairs.items())
    return fit and tensors["sink_valid"].shape[1] == tensors["sink_k"].shape[2] == tensors["sink_v"].shape[2] == sinks


def _sinks(new: Mapping[str, Tensor], state: State, limit: int) -> tuple[dict[str, Tensor], Tensor]:
    """(the sinks after a new token, which may be one; those before it that no ring of `limit` holds, (B, s))."""
    old, position = state.tensors, state.length[:, None]
    index = torch.arange(old["sink_valid"].shape[1], device=position.device)
    here = index == position
    after = {f"sink_{n}": torch.where(here[:, None, :, None], new[f"tail_{n}"], old[f"sink_{n}"]) for n in ("k", "v")}
    return after | {"sink_valid": here | old["sink_valid"]}, old["sink_valid"] & (index < position - limit)


def _follows(old: Tensor, new: Tensor) -> bool:
    """Whether senders (B, Hk, R, D), or their validity (B, R), can be followed by one more."""
    where = 1 if new.dim() == 2 else 2
    sizes = zip(old.shape, new.shape, strict=True) if old.dim() == new.dim() else ((0, 1),)
    return old.dtype == new.dtype and all(a == b for axis, (a, b) in enumerate(sizes) if axis != where)
