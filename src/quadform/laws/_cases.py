"""Generated cases: one call of the operator, with everything that a caller may do to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quadform.algebra import Edges, Graph, Stencil, TensorSpec, Transposed, Uniform, Via, Weights
from quadform.forms import attend
from quadform.laws._table import BY_NAME, Mixer
from quadform.laws._tensors import Source, content, declared, stride

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, eq=False)
class Case:
    """A call: tensors in float64 with the values that they have in `dtype`, and the options of `attend`."""

    row: str
    seed: int
    dtype: torch.dtype
    edges: Edges
    weights: Weights
    q: Tensor | None
    k: Tensor | None
    v: Tensor
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    cotangent: Tensor | None = None  # None: out.sum().backward()

    @property
    def queries(self) -> int:
        return self.v.shape[2] if self.q is None else self.q.shape[2]

    def inputs(self) -> dict[str, Tensor]:
        """All floating-point inputs by name."""
        named = {"q": self.q, "k": self.k, "v": self.v, **self.tensors}
        return {name: x for name, x in named.items() if x is not None}

    def attend(self, form: str, inputs: Mapping[str, Tensor] | None = None, **more: Any) -> Any:
        """`attend` on the inputs given, or on this case's in its dtype."""
        inputs = self.leaves(self.dtype) if inputs is None else inputs
        tensors = {name: inputs[name] for name in self.tensors}
        options = {**self.options, **more}
        q, k, v = inputs.get("q"), inputs.get("k"), inputs["v"]
        return attend(q, k, v, options.pop("edges", self.edges), self.weights, tensors=tensors, form=form, **options)

    def leaves(self, dtype: torch.dtype, grad: bool = False) -> dict[str, Tensor]:
        """The inputs in a dtype, with their strides."""
        return {name: _cast(x, dtype).requires_grad_(grad) for name, x in self.inputs().items()}

    def describe(self) -> str:
        """The call, in words short enough for a terminal."""
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in self.inputs().items())
        options = "".join(f", {name}={_show(value)}" for name, value in self.options.items())
        return f"{self.weights} on {self.edges}; {shapes}{options}; {str(self.dtype).removeprefix('torch.')}, seed {self.seed}"


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another dtype behind the same strides; repeated rows stay repeated."""
    out = torch.empty_strided(x.shape, x.stride(), dtype=dtype)
    if any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True)):
        return x[:1].to(dtype).expand(x.shape).detach() if x.stride(0) == 0 else x.to(dtype)
    return out.copy_(x).detach()


def _show(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_show(v) for v in value)
    return value.int().tolist() if isinstance(value, Tensor) else value


def draw(
    row: str, seed: int, dtype: torch.dtype, limit: int | None = None, plain: bool = False, square: bool = False
) -> Case:
    """The case of that number of a row of the acceptance table.

    Args:
        limit: no size above it; with the same seed the same choices, smaller.
        plain: no padding, masks or positions. square: as many queries as keys where the edges leave it open.
    """
    mixers = BY_NAME[row].mixers
    return draw_mixer(mixers[seed % len(mixers)], row, seed, dtype, limit, plain, square)


def draw_mixer(
    mixer: Mixer,
    row: str,
    seed: int,
    dtype: torch.dtype,
    limit: int | None = None,
    plain: bool = False,
    square: bool = False,
) -> Case:
    source = Source.of(seed, row, dtype)
    weights = mixer.weights
    batch, kv_heads, groups = source.size(0, 3, limit), source.size(1, 2, limit), source.size(1, 2, limit)
    heads = kv_heads * groups
    head_dim, value_dim = source.size(1, 9, limit), source.size(1, 9, limit)
    keys, grid = _senders(mixer, source, limit)
    if isinstance(weights, Via) and weights.core:
        keys, grid, square, plain, head_dim = max(2 * (keys // 2), 4), None, True, True, max(head_dim, 2)
    queries = _receivers(mixer, source, keys, grid, limit, square)
    edges = mixer.build(source.rng, queries, keys)
    q = content(weights, source.normal(batch, heads, queries, head_dim), source)
    k = content(weights, source.normal(batch, kv_heads, keys, head_dim), source)
    v = source.normal(batch, kv_heads, keys, value_dim)
    reads = bool(weights.reads) or edges.content
    sizes = {"B": batch, "H": heads, "Q": queries, "K": keys, "D": head_dim, "G": len(grid or (1,)), "N": max(keys, 1)}
    tensors = _declared(edges, weights, sizes, source)
    pick = {"q": q, "k": k} if reads or source.rng.random() < 0.4 or heads != kv_heads or queries != keys else {}
    if isinstance(edges, Graph) and not reads:
        pick = {"q": q, "k": k}
    options = {} if grid is None else {"grid": grid}
    if not plain:
        options |= _padding(edges, weights, source, batch, queries, keys, grid)
    shaped = {name: _round(stride(x, source), dtype) for name, x in {**pick, "v": v, **tensors}.items()}
    named = {name: shaped[name] for name in tensors}
    y_shape = (batch, heads if pick else kv_heads, queries, value_dim)
    cotangent = None if source.rng.random() < 0.4 else _round(stride(source.normal(*y_shape), source), dtype)
    return Case(
        row, seed, dtype, edges, weights, shaped.get("q"), shaped.get("k"), shaped["v"], named, options, cotangent
    )


def _round(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values that exist in dtype, behind the same strides."""
    return _cast(_cast(x, dtype), torch.float64)


def _senders(mixer: Mixer, source: Source, limit: int | None) -> tuple[int, tuple[int, ...] | None]:
    if mixer.dims == 1:
        return source.size(0, 70, limit), None
    high = 7 if mixer.dims == 2 else 4
    grid = tuple(source.size(1, high, limit) for _ in range(mixer.dims))
    return math.prod(grid), grid


def _receivers(
    mixer: Mixer, source: Source, keys: int, grid: tuple[int, ...] | None, limit: int | None, square: bool
) -> int:
    edges = mixer.edges
    free = source.size(0, 70, limit) if source.rng.random() < 0.3 and not square else keys
    if mixer.on_graph:
        return keys if isinstance(mixer.weights, Uniform) and mixer.weights.aggregate == "symmetric" else free
    assert isinstance(edges, Edges)
    inner = edges.inner if isinstance(edges, Transposed) else edges
    if isinstance(inner, Stencil):
        return edges.count_queries(keys, grid)
    return keys if grid is not None else free


def _declared(edges: Edges, weights: Weights, sizes: dict[str, int], source: Source) -> dict[str, Tensor]:
    inner = edges.inner if isinstance(edges, Transposed) else edges
    if isinstance(inner, Stencil):
        sizes |= {"T": inner.taps}
    if isinstance(edges, Graph):
        sizes |= {"E": edges.num_edges}
    if "feature" in str(getattr(weights, "decay", "")):
        sizes |= {"M": weights.phi.features(sizes["D"])}  # type: ignore[attr-defined]
    specs = [s for s in weights.specs() if not s.optional or source.rng.random() < 0.5]
    if source.rng.random() < 0.3:
        specs.append(TensorSpec("row_scale", ("B", "H", "Q"), ""))
    out = {spec.name: declared(spec, sizes, source) for spec in specs}
    hashing = _hashing(edges)
    if hashing is not None and hashing.n_buckets > 1:
        out["rotations"] = source.normal(1, hashing.n_hashes, sizes["D"], hashing.n_buckets // 2)
    return out


def _hashing(edges: Any) -> Any:
    """The Buckets inside an edge set, if any."""
    if hasattr(edges, "n_hashes"):
        return edges
    parts = [getattr(edges, name, None) for name in ("left", "right")]
    found = [_hashing(p) for p in parts if isinstance(p, Edges)]
    return next((f for f in found if f is not None), None)


def _padding(
    edges: Edges, weights: Weights, source: Source, batch: int, queries: int, keys: int, grid: tuple[int, ...] | None
) -> dict[str, Any]:
    """Nothing, lengths, a mask (right, left, holes, whole rows) or positions, as far as the edges allow each."""
    how = source.rng.choice(("none", "none", "lengths", "mask", "right", "left", "positions"))
    stencil = isinstance(edges.inner if isinstance(edges, Transposed) else edges, Stencil)
    several = grid is not None
    index = torch.arange(keys)
    length = torch.tensor([source.rng.randint(0, keys) for _ in range(batch)], dtype=torch.int64)
    if how == "positions" and not stencil and not several and not isinstance(weights, Via):
        shared = torch.arange(keys) * source.rng.choice((1, 2)) + source.rng.randint(0, 3)
        return {"positions": shared} if queries == keys else {"positions": (torch.arange(queries) * 2, shared)}
    if how == "lengths" and not several:
        if queries == keys or stencil or source.rng.random() < 0.5:
            return {"lengths": length}
        return {
            "lengths": (torch.tensor([source.rng.randint(0, queries) for _ in range(batch)], dtype=torch.int64), length)
        }
    if how in ("right", "left"):
        return {"key_mask": index < length[:, None] if how == "right" or several else index >= length[:, None]}
    holes_allowed = queries == keys or not edges.positional or stencil or several
    if how == "mask" and holes_allowed:
        keep = source.bits(batch, keys)
        some = torch.tensor([source.rng.random() < 0.8 for _ in range(batch)], dtype=torch.bool)
        return {"key_mask": keep & some[:, None]}
    return {}
