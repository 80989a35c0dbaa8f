"""The acceptance table: which form computes which mixer. A form that refuses where it must accept is wrong, and so is the
reverse."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from quadform.algebra import (
    Additive,
    AdditiveV2,
    Alibi,
    All,
    Buckets,
    Causal,
    Dynamic,
    EdgeBias,
    Edges,
    Exp,
    Favor,
    Global,
    Graph,
    Hedgehog,
    Hybrid,
    Kernel,
    PairBias,
    Polynomial,
    Quadratic,
    Similarity,
    Softmax,
    Stencil,
    T5Buckets,
    Table,
    Taps,
    Taylor2,
    TopK,
    Uniform,
    Via,
    Weights,
    Window,
)

NAMES = ("dense", "convolution", "graph", "recurrent")
Make = Callable[[random.Random, int, int], Edges]


@dataclass(frozen=True)
class Mixer:
    """Edges and weights; edges of a graph are made for the number of receivers and senders."""

    edges: Edges | Make
    weights: Weights
    dims: int = 1

    def build(self, rng: random.Random, queries: int, keys: int) -> Edges:
        return self.edges if isinstance(self.edges, Edges) else self.edges(rng, queries, keys)

    @property
    def on_graph(self) -> bool:
        return not isinstance(self.edges, Edges)

    def __str__(self) -> str:
        named = getattr(self.edges, "__name__", "a graph").replace("_", " ")
        return f"{self.weights} on {named if self.on_graph else self.edges}"


@dataclass(frozen=True)
class Row:
    """Mixers that each form treats alike; dense and graph accept all of them."""

    name: str
    mixers: tuple[Mixer, ...]
    convolution: bool = False
    recurrent: bool = False

    def accepts(self, form: str) -> bool:
        return {"dense": True, "graph": True, "convolution": self.convolution, "recurrent": self.recurrent}[form]


def random_graph(rng: random.Random, queries: int, keys: int) -> Graph:
    """About two edges a receiver, some named twice, some receivers without any."""
    count = rng.randint(0, 2 * queries + 1) if queries and keys else 0
    pairs = [(rng.randrange(keys), rng.randrange(queries)) for _ in range(count)]
    pairs += pairs[: len(pairs) // 4]
    rng.shuffle(pairs)
    return Graph(([j for j, _ in pairs], [i for _, i in pairs]), keys if keys == queries else (keys, queries))


def graph_in_window(rng: random.Random, queries: int, keys: int) -> Edges:
    """The edges of a random graph that are near, or at tokens that all see."""
    return random_graph(rng, queries, keys) & (Window(6, 4, sinks=2) | Global(first=1, last=1))


def graph_and_past(rng: random.Random, queries: int, keys: int) -> Edges:
    """A random graph beside a window, of which the past remains."""
    return (random_graph(rng, queries, keys) | Window(2)) & Causal()


def _cross(edges: list[Edges], weights: list[Weights], dims: int = 1) -> tuple[Mixer, ...]:
    return tuple(Mixer(e, w, dims) for e in edges for w in weights)


CONTENT: list[Weights] = [
    Softmax(),
    Softmax(scale=0.3, softcap=2.0),
    Softmax(bias=Table(3, 2)),
    Softmax(bias=Alibi()),
    Softmax(bias=T5Buckets(8, 20)),
    Softmax(bias=Quadratic()),
    *(Similarity(name) for name in ("exponential", "polynomial", "gaussian", "cauchy")),
]
RELATIVE: list[Weights] = [
    Softmax(content=False, bias=bias)
    for bias in (
        Table(3, 2),
        Table(0, 0),
        Alibi(),
        T5Buckets(8, 20),
        T5Buckets(6, 9, False),
        Quadratic(),
        Quadratic(True),
    )
]
MAPS: list[Weights] = [
    Kernel(name) for name in ("elu1", "relu", "exp", Taylor2(), Taylor2(0.2), Polynomial(2), Polynomial(3, 0.8))
]
MAPS += [Kernel("elu1", normalise=False), Kernel(Polynomial(3), normalise=False)]
LEARNED_MAPS: list[Weights] = [
    Kernel(Taylor2(centre="fixed")),
    Kernel(Taylor2(centre="running")),
    Kernel(Hedgehog()),
    Kernel(Hedgehog(3)),
    Kernel(Favor(7)),
    Kernel(Favor(4, 0.3), normalise=False),
    Kernel("exp", normalise=False),
]
DECAY: list[Weights] = [
    Kernel(name, normalise=norm, decay=decay)
    for name in ("elu1", "exp")
    for norm in (True, False)
    for decay in ("scalar", "feature")
]
DECAY += [Kernel(Hedgehog(2), decay="feature"), Kernel(Favor(5), decay="scalar")]
UNIFORM: list[Weights] = [Uniform("sum"), Uniform("mean")]

_BORDERS = ("zeros", "renormalise", "replicate", "circular", "reflect")
_STENCILS_1D: list[Edges] = [Stencil(3, border=b) for b in _BORDERS]
_STENCILS_1D += [Stencil(4, border="valid"), Stencil(1, stride=2), Stencil(2, stride=2, border="valid")]
_STENCILS_1D += [Stencil(3, dilation=2, padding=(1, 3))]
_STENCILS_1D += [Stencil(5, stride=3, padding=2, border=b) for b in _BORDERS]
_STENCILS_1D += [Stencil(3, padding="causal", border=b) for b in ("circular", "reflect")]
_STENCILS_ND: list[tuple[Edges, int]] = [(Stencil((3, 2), border=b), 2) for b in _BORDERS]
_STENCILS_ND += [
    (Stencil((2, 3), stride=(2, 1), dilation=(1, 2), padding=((1, 0), (2, 1))), 2),
    (Stencil((3, 3), border="valid"), 2),
    (Stencil((2, 3, 1), border="circular"), 3),
    (Stencil((2, 2, 2), stride=2, padding=1, border="replicate"), 3),
]
_CAUSAL_STENCILS: list[Edges] = [
    Stencil(3, padding="causal"),
    Stencil(4, padding="causal", border="renormalise"),
    Stencil(3, dilation=3, padding="causal", border="replicate"),
    Stencil(1, padding="causal"),
]
_WINDOWS: list[Edges] = [
    Window(3, 2),
    Window(0, 4),
    Window(2, 2, dilation=3),
    Window(4, 1, sinks=2),
    Window(2, 2) | Global(first=1, last=1),
    Window(1, 1, dilation=2) | Global(indices=(0, 3)),
    Window(1, 1) | Window(0, 6),
    All() & Window(2, 3),
]
_CAUSAL_WINDOWS: list[Edges] = [
    Window(5),
    Window(0),
    Window(100),
    Window(3, dilation=2),
    Window(4, sinks=3),
    Window(3, dilation=4, sinks=1),
]
_BANDED_CAUSAL: list[Edges] = [
    Causal() & Window(3, 3),
    Window(2) | Window(6, dilation=3),
    Causal() & (Window(3) | Global(first=2)),
    Causal() & Global(first=2),
]
_FAR: list[Edges] = [Causal() | Window(2), Causal() & (Causal() | Window(0, 2)), Causal() & (Causal() | Global(last=1))]
_FREE: list[Edges] = [Causal().T, All() & Causal().T, Causal() | Window(0, 2), Causal() | Global(last=1)]
_NEAR: list[Edges] = [Window(3), Window(3, sinks=2), Window(2, 2), Window(0), Window(4, 4, sinks=1)]
_FAR_MAPS = dict(zip(_NEAR, (Taylor2(centre="fixed"), Hedgehog(), Favor(6), Exp(), Hedgehog(2)), strict=True))

_PAST_BUCKETS: list[Edges] = [
    Causal() & Buckets(2, 4),
    Buckets(1, 1) & Causal(),
    Window(4, sinks=2) & Buckets(2, 4),
    (Window(3) | Global(first=1, indices=(7,))) & Causal() & Buckets(2, 4),
]
ROWS: tuple[Row, ...] = (
    Row("softmax/all", _cross([All()], [*CONTENT, Softmax(bias=PairBias()), AdditiveV2(), Additive()])),
    Row("softmax/all-2d", _cross([All()], [Softmax(bias=Quadratic(True)), Softmax(bias=Table((1, 2), (2, 1)))], 2)),
    Row("softmax/causal", _cross([Causal()], CONTENT), recurrent=True),
    Row(
        "window",
        _cross(_WINDOWS, [Softmax(), Softmax(bias=Alibi()), Softmax(bias=Table(2, 3)), Softmax(softcap=1.5)]),
        True,
    ),
    Row(
        "window/causal",
        _cross(_CAUSAL_WINDOWS, [Softmax(), Softmax(bias=Alibi()), Softmax(bias=Table(4, 0))]),
        convolution=True,
        recurrent=True,
    ),
    Row("window/causal-combined", _cross(_BANDED_CAUSAL, [Softmax()]), convolution=True, recurrent=True),
    Row(
        "relative-bias",
        _cross([All(), Window(4, 2), Window(1, 2, dilation=3), Window(2).T], RELATIVE),
        convolution=True,
    ),
    Row(
        "relative-bias/2d",
        _cross(
            [All(), Stencil((3, 2), border="renormalise")],
            [Softmax(content=False, bias=bias) for bias in (Quadratic(), Quadratic(True), Table((1, 2), (2, 1)))],
            2,
        ),
        convolution=True,
    ),
    Row(
        "relative-bias/stencil",
        _cross([*_STENCILS_1D[:5], Stencil(4, border="valid")], RELATIVE[:3] + RELATIVE[5:6]),
        convolution=True,
    ),
    Row("relative-bias/causal", _cross([Causal(), Window(4), Window(3, dilation=2)], RELATIVE), True, True),
    Row("uniform", _cross([All(), Window(2, 1), Stencil(3, border="circular")], UNIFORM), convolution=True),
    Row("uniform/causal", _cross([Causal(), Window(3)], UNIFORM), True, True),
    Row(
        "taps/stencil",
        _cross(_STENCILS_1D, [Taps()]) + tuple(Mixer(e, Taps(), d) for e, d in _STENCILS_ND),
        convolution=True,
    ),
    Row("taps/stencil-causal", _cross(_CAUSAL_STENCILS, [Taps()]), True, True),
    Row(
        "dynamic/stencil",
        _cross(_STENCILS_1D, [Dynamic()]) + tuple(Mixer(e, Dynamic(), d) for e, d in _STENCILS_ND),
        convolution=True,
    ),
    Row("dynamic/stencil-causal", _cross(_CAUSAL_STENCILS, [Dynamic()]), True, True),
    Row(
        "taps/stencil.T",
        tuple(Mixer(Stencil(3, border=b).T, Taps()) for b in _BORDERS)
        + tuple(Mixer(Stencil(*a).T, Taps()) for a in ((4, 2, 1, 1), (3, 2, 2, 2), (2, 2, 1, 0)))
        + tuple(
            Mixer(Stencil((3, 2), stride=(2, 1), padding=((1, 1), (0, 1)), border=b).T, Taps(), 2) for b in _BORDERS
        )
        + (Mixer(Stencil((2, 2, 2), border="circular").T, Taps(), 3),),
        convolution=True,
    ),
    Row("kernel/all", _cross([All()], [*MAPS, *LEARNED_MAPS]), recurrent=True),
    Row("kernel/causal", _cross([Causal()], [*MAPS, *LEARNED_MAPS]), recurrent=True),
    Row("kernel/causal+decay", _cross([Causal()], DECAY), recurrent=True),
    Row("kernel/window", _cross([Window(3, 2), Window(1, 1, dilation=2)], [*MAPS[:5], *LEARNED_MAPS[:3]])),
    Row(
        "kernel/window-causal",
        _cross([Window(4), Window(2, dilation=3), Window(0)], [*MAPS[:6], *LEARNED_MAPS[:5]]),
        recurrent=True,
    ),
    Row(
        "hybrid",
        tuple(
            Mixer(e, Hybrid(near, Kernel(phi)))
            for e in (Causal(), All())
            for near in _NEAR
            for phi in ("elu1", Taylor2(), _FAR_MAPS[near])
        ),
        recurrent=True,
    ),
    Row("hybrid/dilated", _cross([Causal(), All()], [Hybrid(Window(2, dilation=3), Kernel("elu1"))])),
    Row(
        "*/graph",
        tuple(
            Mixer(random_graph, w)
            for w in (
                Softmax(),
                Softmax(bias=EdgeBias()),
                Softmax(content=False, bias=EdgeBias()),
                Softmax(softcap=2.0),
                Kernel("elu1"),
                Kernel(Taylor2()),
                Kernel("relu", normalise=False),
                Kernel(Taylor2(centre="running")),
                Kernel(Favor(5)),
                *CONTENT[-4:],
                Uniform("sum"),
                Uniform("mean"),
                Uniform("symmetric"),
                Additive(),
                Additive(edge=True),
                AdditiveV2(),
                AdditiveV2(0.01),
            )
        ),
    ),
    Row("combination", _cross(_FREE, [Softmax(), Kernel("elu1"), Similarity("cauchy")])),
    Row("combination/causal", _cross(_FAR, [Softmax(), Softmax(bias=Alibi()), Kernel("exp")]), recurrent=True),
    Row("combination/fixed", _cross([Window(2) | Window(1, 3), All() & Window(3, 1)], [*RELATIVE[:3], *UNIFORM]), True),
    Row(
        "combination/graph",
        tuple(Mixer(make, w) for make in (graph_in_window, graph_and_past) for w in (Softmax(), Kernel("elu1"))),
    ),
    Row("buckets", _cross([Buckets(1, 2), Buckets(2, 4), Window(1, 1) | Buckets(1, 4)], [Softmax(), Kernel("elu1")])),
    Row("buckets/causal", _cross(_PAST_BUCKETS, [Softmax()]), recurrent=True),
    Row(
        "topk",
        _cross([TopK(1), TopK(4), Causal() & TopK(3), TopK(2) & Window(4, 4)], [Softmax(), Softmax(bias=Alibi())]),
    ),
    Row(
        "via",
        _cross(
            [All()],
            [Via(4, Taps(), Softmax()), Via(3, Softmax(), Softmax()), Via(2, Uniform("mean"), Softmax(), "pinv")],
        ),
    ),
    Row(
        "via/pooling",
        _cross([All()], [Via(3, Uniform("mean"), Softmax()), Via(7, Uniform("mean"), Softmax(scale=1.0))]),
        True,
    ),
)
BY_NAME = {row.name: row for row in ROWS}
