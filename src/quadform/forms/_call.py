"""One validated call of the operator: what every form receives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra import (
    All,
    Edges,
    Graph,
    Layout,
    Operands,
    Stencil,
    TensorSpec,
    Transposed,
    Via,
    Weights,
    build_layout,
)

ROW_SCALE = TensorSpec("row_scale", ("B", "H", "Q"), "g_i, the factor of each output row", optional=True)
ROTATIONS = TensorSpec("rotations", ("H", "R", "D", "S"), "hash rotations", optional=True)


@dataclass(frozen=True, eq=False)
class Call:
    """A call with checked shapes: q (B, H, n, D) or None, k (B, Hk, m, D) or None, v (B, Hk, m, Dv)."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor
    edges: Edges
    weights: Weights
    layout: Layout
    heads: int
    tensors: Mapping[str, Tensor]
    dims: Mapping[str, tuple[str, ...]]
    dropout_p: float = 0.0
    return_weights: bool = False
    return_state: bool = False
    state: Any = None
    given_positions: bool = False
    lengths: Tensor | None = None  # of the keys, where the call gave them

    @property
    def groups(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.v.shape[1] if self.v.shape[1] else 1

    @property
    def compute_dtype(self) -> torch.dtype:
        """float32 for half precision, the dtype itself elsewhere."""
        return torch.float32 if self.v.dtype in (torch.float16, torch.bfloat16) else self.v.dtype

    @property
    def head_dim(self) -> int:
        return self.q.shape[-1] if self.q is not None else self.v.shape[-1]

    def operands(self) -> Operands:
        """All tensors with H heads and in the compute dtype."""
        dtype = self.compute_dtype

        def wide(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            x = x.to(dtype)
            return x if self.groups == 1 else x.repeat_interleave(self.groups, 1)

        v = wide(self.v)
        assert v is not None
        tensors = {name: x.to(dtype) if x.is_floating_point() else x for name, x in self.tensors.items()}
        q = None if self.q is None else self.q.to(dtype)
        return Operands(q, wide(self.k), v, self.layout, self.edges, self.heads, tensors, self.dims)

    def resolved(self) -> Call:
        """The same call with edges that do not depend on q and k."""
        if not self.edges.content:
            return self
        return dataclasses.replace(self, edges=self.edges.resolve(self.operands(), self.weights))


def build_call(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    edges: Edges,
    weights: Weights,
    tensors: Mapping[str, Tensor] | None,
    lengths: Any,
    key_mask: Tensor | None,
    positions: Any,
    grid: tuple[int, ...] | None,
    **options: Any,
) -> Call:
    """Checks everything that does not depend on the form."""
    if not isinstance(edges, Edges):
        raise ArgumentError("edges", "edges such as Causal()", repr(edges)[:80])
    if not isinstance(weights, Weights):
        raise ArgumentError("weights", "weights such as Softmax()", repr(weights)[:80])
    heads = _check_shapes(q, k, v, weights, edges)
    batch, keys = v.shape[0], v.shape[2]
    queries = q.shape[2] if q is not None else edges.count_queries(keys, grid)
    _check_pair(edges, weights)
    device = torch.device("cpu") if v.is_meta else v.device  # a call on the meta device is explained, never computed
    layout = build_layout(edges, batch, queries, keys, device, lengths, key_mask, positions, grid)
    edges.check(queries, keys, layout.grid)
    tensors = dict(tensors or {})
    dims = _check_tensors(tensors, edges, weights, {"B": batch, "H": heads, "Q": queries, "K": keys}, q, v, layout)
    q, k, v, tensors = _silence_padding(q, k, v, tensors, dims, layout)
    dropout_p = options.get("dropout_p", 0.0)
    if not isinstance(dropout_p, int | float) or not 0 <= dropout_p < 1:
        raise ArgumentError("dropout_p", "a probability in [0, 1)", repr(dropout_p))
    key_lengths = lengths[1] if isinstance(lengths, tuple) else lengths
    return Call(
        q,
        k,
        v,
        edges,
        weights,
        layout,
        heads,
        tensors,
        dims,
        given_positions=positions is not None,
        lengths=key_lengths,
        **options,
    )


def _check_shapes(q: Tensor | None, k: Tensor | None, v: Tensor, weights: Weights, edges: Edges) -> int:
    if not isinstance(v, Tensor):
        raise ArgumentError("v", "a tensor (B, H, N, Dv)", repr(v)[:60])
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x is None:
            if name in weights.reads or edges.content:
                reader = weights if name in weights.reads else edges
                raise ArgumentError(name, f"a tensor (B, H, N, D), which {reader} reads", "None")
            continue
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
            got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)[:60]
            raise ArgumentError(name, "a floating-point tensor (B, H, N, D)", got)
        if x.device != v.device or x.dtype != v.dtype:
            raise ArgumentError(name, f"dtype and device of v, {v.dtype} on {v.device}", f"{x.dtype} on {x.device}")
        if x.shape[0] != v.shape[0]:
            raise ArgumentError(name, f"batch size {v.shape[0]}, as v has", str(x.shape[0]))
    if k is not None and k.shape[1:3] != v.shape[1:3]:
        raise ArgumentError("k", f"heads and length {tuple(v.shape[1:3])}, as v has", str(tuple(k.shape[1:3])))
    if q is not None and k is not None and q.shape[-1] != k.shape[-1]:
        raise ArgumentError("q", f"head_dim {k.shape[-1]}, as k has", str(q.shape[-1]))
    heads, kv_heads = (v if q is None else q).shape[1], v.shape[1]
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise ArgumentError("q", f"a multiple of the {kv_heads} key-value heads", f"{heads} heads")
    return heads


def _check_pair(edges: Edges, weights: Weights) -> None:
    """Refuses pairs that mean nothing, whatever the form."""
    if weights.needs_taps:
        inner = edges.inner if isinstance(edges, Transposed) else edges
        if not isinstance(inner, Stencil) or (isinstance(edges, Transposed) and weights.log):
            raise ArgumentError("edges", f"a Stencil alone, whose taps {weights} reads", str(edges))
    if weights.per_edge and not isinstance(edges, Graph):
        raise ArgumentError("edges", f"a Graph alone, whose edges {weights} reads", str(edges))
    if weights.scores_causal_only and not edges.is_causal:
        raise ArgumentError("edges", f"causal edges, since {weights} lets the past decay", str(edges))
    if isinstance(weights, Via) and edges != All():
        raise ArgumentError("edges", "All(): two hops through extra nodes join every pair", str(edges))


def _check_tensors(
    tensors: dict[str, Tensor],
    edges: Edges,
    weights: Weights,
    sizes: dict[str, int],
    q: Tensor | None,
    v: Tensor,
    layout: Layout,
) -> dict[str, tuple[str, ...]]:
    specs = {spec.name: spec for spec in (*weights.specs(), ROW_SCALE)}
    if edges.content:
        specs[ROTATIONS.name] = ROTATIONS
    for name in tensors:
        if name not in specs:
            raise ArgumentError("tensors", f"names among {sorted(specs)} for {weights} on {edges}", repr(name))
    sizes |= {"D": v.shape[-1] if q is None else q.shape[-1], "G": len(layout.grid)}
    if isinstance(edges, Graph):
        sizes["E"] = edges.num_edges
    inner = edges.inner if isinstance(edges, Transposed) else edges
    if isinstance(inner, Stencil):
        sizes["T"] = inner.taps
    for name, spec in specs.items():
        if name not in tensors:
            if not spec.optional:
                raise ArgumentError(
                    "tensors", f"{name!r} ({', '.join(spec.dims)}): {spec.meaning}", f"{sorted(tensors) or 'none'}"
                )
            continue
        x = tensors[name]
        if not isinstance(x, Tensor) or not _fits(x, spec, sizes):
            got = f"{tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)[:60]
            wanted = ", ".join(f"{d}={sizes[d]}" if d in sizes else d for d in spec.dims)
            raise ArgumentError(f"tensors[{name!r}]", f"a tensor ({wanted}), where B and H may be 1", got)
        if x.device != v.device:
            raise ArgumentError(f"tensors[{name!r}]", f"a tensor on {v.device}", str(x.device))
    return {name: specs[name].dims for name in tensors}


def _fits(x: Tensor, spec: TensorSpec, sizes: dict[str, int]) -> bool:
    if x.dim() != len(spec.dims):
        return False
    for size, dim in zip(x.shape, spec.dims, strict=True):
        expected = int(dim) if dim.isdigit() else sizes.get(dim, size)
        if size != expected and not (dim in ("B", "H") and size == 1):
            return False
    return True


def _silence_padding(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    tensors: dict[str, Tensor],
    dims: dict[str, tuple[str, ...]],
    at: Layout,
) -> tuple[Tensor | None, Tensor | None, Tensor, dict[str, Tensor]]:
    """Senders that do not exist become 0, so that nothing they hold (NaN, say) can spread."""
    if at.k_valid is None:
        return q, k, v, tensors
    keep = at.k_valid[:, None, :, None]
    k = None if k is None else torch.where(keep, k, 0)
    v = torch.where(keep, v, 0)
    if q is not None and at.q_valid is not None:
        q = torch.where(at.q_valid[:, None, :, None] | q.isfinite(), q, 0)
    out = {}
    for name, x in tensors.items():
        names = dims[name]
        if "K" in names and names[0] == "B":
            shape = [1] * len(names)
            shape[0], shape[names.index("K")] = at.k_valid.shape[0], at.keys
            x = torch.where(at.k_valid.view(shape), x, 0)
        out[name] = x
    return q, k, v, out
