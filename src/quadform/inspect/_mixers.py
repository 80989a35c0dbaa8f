"""The forms that heads are compared with, as quadform runs them.

Each function gives the mixer of one form for a layer, or None where the form cannot be run on such a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra import (
    All,
    Causal,
    Edges,
    FeatureMap,
    Global,
    Graph,
    Hybrid,
    Kernel,
    Softmax,
    Stencil,
    Taps,
    Taylor2,
    TopK,
    Uniform,
    Via,
    Weights,
    Window,
)
from quadform.inspect._block import SINKS
from quadform.inspect._grid import Grid

PAIRS = 2**20
"""Pairs of tokens that are looked at at once while edges are listed."""


@dataclass(frozen=True)
class Shape:
    """What one call of a layer looks like, for one sequence."""

    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    causal: bool
    cross: bool
    grid: Grid
    dtype: torch.dtype


def nothing(shape: Shape) -> Mapping[str, Tensor]:
    """No tensors."""
    return {}


@dataclass(frozen=True)
class Mixer:
    """Edges, weights and the tensors that they declare.

    Attributes:
        tensors: the call's tensors for a shape, with random values.
        cells: the mixer takes the cells of the grid alone, without the special tokens before them.
    """

    edges: Edges
    weights: Weights
    tensors: Callable[[Shape], Mapping[str, Tensor]] = nothing
    cells: bool = False


@dataclass(frozen=True)
class OneFeature(FeatureMap):
    """phi(x) = exp(x_1): one positive feature, whatever the head dimension; it stands for exp(a'k) with a fitted a."""

    def features(self, head_dim: int) -> int:
        return 1

    def __call__(self, x: Tensor) -> Tensor:
        return x[..., :1].clamp(-30.0, 30.0).exp()


def attention(shape: Shape) -> Mixer:
    """The layer's own softmax attention."""
    return Mixer(_everything(shape), Softmax())


def mean(shape: Shape) -> Mixer | None:
    """The mean of v over all keys, or over those so far."""
    return Mixer(_everything(shape), Uniform("mean"))


def convolution(shape: Shape, width: int, side: int) -> Mixer | None:
    """`width` taps on a line, side x side on a grid; causal heads look back only."""
    if shape.cross:
        return None
    size = width if shape.grid.dims == 1 else side
    back = (size - 1, 0) if shape.causal else (size // 2, size - 1 - size // 2)
    kernel = size if shape.grid.dims == 1 else (size,) * shape.grid.dims
    edges = Stencil(kernel, padding=back if shape.grid.dims == 1 else (back,) * shape.grid.dims)

    def taps(at: Shape) -> Mapping[str, Tensor]:
        return {"taps": torch.randn(at.heads, edges.taps, dtype=at.dtype, generator=_seeded())}

    return Mixer(edges, Taps(), taps, cells=True)


def window(shape: Shape, size: int, side: int, sinks: bool) -> Mixer | None:
    """Softmax over size / 2 keys on either side (causal heads: the last `size`), side x side on a grid, sinks optional."""
    if shape.cross:
        return None
    edges = _near(shape, size, sinks) if shape.grid.dims == 1 else _boxes(shape, side, sinks)
    return Mixer(edges, Softmax())


def hybrid(shape: Shape, size: int, side: int) -> Mixer | None:
    """Softmax in a window with sinks and one feature of the key elsewhere; on a line only."""
    if shape.cross or shape.grid.dims > 1:
        return None
    return Mixer(_everything(shape), Hybrid(_near(shape, size, True), Kernel(OneFeature())))


def graph(shape: Shape, k: int) -> Mixer | None:
    """Softmax over k senders of each receiver, drawn at random; causal receivers have none after themselves."""

    def draw(rows: slice) -> Tensor:
        lots = torch.rand(rows.stop - rows.start, shape.keys, generator=generator)
        late = torch.arange(shape.keys) > torch.arange(rows.start, rows.stop)[:, None]
        lots = lots.masked_fill(late, 2.0) if shape.causal else lots
        lowest = lots.topk(min(k, shape.keys), -1, largest=False)
        return torch.zeros_like(lots, dtype=torch.bool).scatter_(-1, lowest.indices, lowest.values < 2.0)

    generator = _seeded()
    return Mixer(_listed(shape, draw), Softmax())


def taylor(shape: Shape) -> Mixer | None:
    """The exponential's Taylor series to second order."""
    return Mixer(_everything(shape), Kernel(Taylor2()))


def nystrom(shape: Shape, landmarks: int) -> Mixer | None:
    """Softmax through landmarks; not for causal heads, nor for queries that are not the keys' tokens."""
    if shape.causal or shape.cross:
        return None
    return Mixer(All(), Via(landmarks, Uniform("mean"), Softmax(), core="pinv"))


def top_k(shape: Shape, k: int) -> Mixer | None:
    """Softmax over each query's k largest scores."""
    return Mixer(Causal() & TopK(k) if shape.causal else TopK(k), Softmax())


def _everything(shape: Shape) -> Edges:
    return Causal() if shape.causal else All()


def _near(shape: Shape, size: int, sinks: bool) -> Edges:
    """The window of a line, as edges that slide."""
    special = shape.grid.special
    first, last = (special, 0) if special else SINKS[shape.causal]
    if shape.causal:
        return Window(size - 1, 0, sinks=first if sinks else 0)
    inside = Window(size // 2, size // 2)
    return inside | Global(first=first, last=last) if sinks else inside


def _boxes(shape: Shape, side: int, sinks: bool) -> Edges:
    """The window of a grid, listed pair by pair; sinks see all and are seen by all."""
    reach = ((side // 2, side // 2),) * shape.grid.dims
    special = shape.grid.special
    first, last = (special, 0) if special else SINKS[shape.causal]
    is_sink = torch.zeros(shape.keys, dtype=torch.bool)
    if sinks:
        is_sink[:first] = True
        is_sink[shape.keys - last :] = True

    def near(rows: slice) -> Tensor:
        pairs = shape.grid.within(rows, reach) | is_sink | is_sink[rows, None]
        late = torch.arange(shape.keys) > torch.arange(rows.start, rows.stop)[:, None]
        return pairs & ~late if shape.causal else pairs

    return _listed(shape, near)


def _listed(shape: Shape, pairs: Callable[[slice], Tensor]) -> Graph:
    """The graph of a boolean (rows, keys) for each slice of receivers."""
    count = max(1, PAIRS // max(1, shape.keys))
    edges = []
    for first in range(0, shape.queries, count):
        receiver, sender = pairs(slice(first, min(first + count, shape.queries))).nonzero(as_tuple=True)
        edges.append(torch.stack([sender, receiver + first]))
    index = torch.cat(edges, -1) if edges else torch.zeros(2, 0, dtype=torch.int64)
    return Graph(index, (shape.keys, shape.queries))


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
