"""Law 7: attention under a mask is message passing; graph layers are special cases, written here as loops over edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import (
    Additive,
    AdditiveV2,
    All,
    Edges,
    Graph,
    PairBias,
    Quadratic,
    Softmax,
    Stencil,
    Taps,
    Uniform,
    Weights,
)
from quadform.laws._cases import DTYPES, Case
from quadform.laws._oracle import accepting
from quadform.laws._outcome import TOLERANCE, Outcome, distance
from quadform.laws._table import random_graph
from quadform.laws._tensors import Source

Score = Callable[[int, int, int], Tensor]  # (receiver, sender, edge) -> (B, H)
Made = tuple[Edges, Weights, dict[str, Tensor], Tensor]


def _softmax_passing(graph: Graph, v: Tensor, score: Score) -> Tensor:
    """One round of messages: each receiver weighs its incoming edges, one by one, by the softmax of their scores."""
    receivers = graph.sizes[1]
    y = v.new_zeros(*v.shape[:2], receivers, v.shape[-1])
    incoming: list[list[tuple[int, int]]] = [[] for _ in range(receivers)]
    for e, (j, i) in enumerate(graph.edge_index.T.tolist()):
        incoming[i].append((j, e))
    for i, edges in enumerate(incoming):
        if edges:
            w = torch.softmax(torch.stack([score(i, j, e) for j, e in edges], -1), -1)
            y[:, :, i] = sum(
                (w[..., a, None] * v[:, :, j] for a, (j, _) in enumerate(edges)), torch.zeros_like(y[:, :, i])
            )
    return y


def _transformer(graph: Graph, q: Tensor, k: Tensor, v: Tensor, source: Source) -> Made:
    scale = q.shape[-1] ** -0.5
    return graph, Softmax(), {}, _softmax_passing(graph, v, lambda i, j, e: (q[:, :, i] * k[:, :, j]).sum(-1) * scale)


def _masked(graph: Graph, q: Tensor, k: Tensor, v: Tensor, source: Source) -> Made:
    """Dense attention with the log of each pair's multiplicity as its bias."""
    count = torch.zeros(graph.sizes[1], graph.sizes[0], dtype=torch.float64)
    for j, i in graph.edge_index.T.tolist():
        count[i, j] += 1
    alone = count.sum(-1) == 0
    bias = count.log()
    bias[alone] = 0
    y = _transformer(graph, q, k, v, source)[-1]
    row_scale = (~alone).double()[None, None].expand(q.shape[0], q.shape[1], -1)
    return All(), Softmax(bias=PairBias()), {"bias": bias[None, None], "row_scale": row_scale}, y


def _gat(graph: Graph, q: Tensor, k: Tensor, v: Tensor, source: Source) -> Made:
    left, right = q.sum(-1), k.sum(-1)
    edge = source.normal(1, 1, graph.num_edges)
    y = _softmax_passing(graph, v, lambda i, j, e: F.leaky_relu(left[:, :, i] + right[:, :, j] + edge[:, :, e], 0.2))
    return graph, Additive(edge=True), {"receiver": left, "sender": right, "edge": edge}, y


def _gatv2(graph: Graph, q: Tensor, k: Tensor, v: Tensor, source: Source) -> Made:
    attention = source.normal(q.shape[1], q.shape[-1])
    y = _softmax_passing(graph, v, lambda i, j, e: (F.leaky_relu(q[:, :, i] + k[:, :, j], 0.2) * attention).sum(-1))
    return graph, AdditiveV2(), {"attention": attention}, y


def _sum(graph: Graph, q: Tensor, k: Tensor, v: Tensor, source: Source) -> Made:
    y = v.new_zeros(*q.shape[:3], v.shape[-1])
    for j, i in graph.edge_index.T.tolist():
        y[:, :, i] += v[:, :, j]
    return graph, Uniform("sum"), {}, y


def _mean(graph: Graph, q: Tensor, k: Tensor, v: Tensor, source: Source) -> Made:
    degree = torch.bincount(graph.edge_index[1], minlength=graph.sizes[1]).clamp(min=1)
    return graph, Uniform("mean"), {}, _sum(graph, q, k, v, source)[-1] / degree[:, None]


def _scaled_mean(graph: Graph, q: Tensor, k: Tensor, v: Tensor, source: Source) -> Made:
    """A sum is a mean whose rows are scaled by their degree."""
    degree = torch.bincount(graph.edge_index[1], minlength=graph.sizes[1]).double()
    scale = degree[None, None].expand(q.shape[0], q.shape[1], -1)
    return graph, Uniform("mean"), {"row_scale": scale}, _sum(graph, q, k, v, source)[-1]


def _gcn(graph: Graph, q: Tensor, k: Tensor, v: Tensor, source: Source) -> Made:
    degree = torch.bincount(graph.edge_index[1], minlength=graph.sizes[1]).tolist()
    y = v.new_zeros(*q.shape[:3], v.shape[-1])
    for j, i in graph.edge_index.T.tolist():
        if degree[j]:
            y[:, :, i] += v[:, :, j] / math.sqrt(degree[i] * degree[j])
    return graph, Uniform("symmetric"), {}, y


LAYERS: dict[str, Callable[..., Made]] = {
    "graph Transformer": _transformer,
    "dense mask with log-counts": _masked,
    "GAT": _gat,
    "GATv2": _gatv2,
    "sum": _sum,
    "mean": _mean,
    "sum as a scaled mean": _scaled_mean,
    "GCN": _gcn,
}
SUBJECTS = (*LAYERS, "node permutation", "locality", "circular shift", "shift of the interior")


def gnn(subject: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """A layer against its loops; or a symmetry of message passing."""
    source = Source.of("gnn", subject, seed, dtype)
    if subject in LAYERS:
        n = source.size(0, 25, limit)
        m = n if subject == "GCN" else source.size(0, 25, limit)
        graph = random_graph(source.rng, n, m)
        q, k, v = source.normal(2, 2, n, 4), source.normal(2, 2, m, 4), source.normal(2, 2, m, 3)
        edges, weights, named, expected = LAYERS[subject](graph, q, k, v, source)
        return _compare(
            subject, seed, dtype, Case("gnn", seed, DTYPES[dtype], edges, weights, q, k, v, named), expected
        )
    return {
        "node permutation": _permutation,
        "locality": _locality,
        "circular shift": _shift,
        "shift of the interior": _interior,
    }[subject](subject, seed, dtype, source, limit)


def _compare(
    subject: str, seed: int, dtype: str, case: Case, expected: Tensor, pick: Any = slice(None)
) -> list[Outcome]:
    tolerance = TOLERANCE[case.dtype]
    return [
        Outcome(
            "gnn", subject, form, dtype, distance(case.attend(form)[:, :, pick], expected), tolerance, case.describe()
        )
        for form in accepting(case)
    ]


def _permutation(subject: str, seed: int, dtype: str, source: Source, limit: int | None) -> list[Outcome]:
    """Renumbering nodes renumbers outputs."""
    n = source.size(1, 25, limit)
    graph, order = random_graph(source.rng, n, n), torch.randperm(n, generator=source.generator)
    q, k, v = (source.normal(1, 2, n, 4) for _ in range(3))
    weights = source.rng.choice((Softmax(), Uniform("symmetric"), Uniform("sum")))
    expected = Case("gnn", seed, torch.float64, graph, weights, q, k, v).attend("dense")[:, :, order]
    place = order.argsort()
    moved = Graph(place[graph.edge_index], n)
    case = Case("gnn", seed, DTYPES[dtype], moved, weights, q[:, :, order], k[:, :, order], v[:, :, order])
    return _compare(subject, seed, dtype, case, expected)


def _locality(subject: str, seed: int, dtype: str, source: Source, limit: int | None) -> list[Outcome]:
    """After L layers only nodes within L hops move a node (its own features too, through q); after one, each sender does."""
    n, layers = source.size(2, 12, limit), source.rng.randint(1, 4)
    graph = random_graph(source.rng, n, n)
    step = torch.zeros(n, n, dtype=torch.bool)
    step[graph.edge_index[1], graph.edge_index[0]] = True
    hop = step.double() + torch.eye(n, dtype=torch.float64)
    reach = torch.linalg.matrix_power(hop, layers) > 0
    x = source.normal(1, 1, n, 3)
    out = []
    exact = DTYPES[dtype]
    for form in accepting(Case("gnn", seed, exact, graph, Softmax(), x, x, x)):

        def stack(h: Tensor, form: str = form) -> Tensor:
            for _ in range(layers):
                h = Case("gnn", seed, exact, graph, Softmax(), h * 0.1, h * 0.1, h).attend(form)
            return h

        wrong = 0
        for j in range(n):
            other = x.clone()
            other[:, :, j] += 10
            moved = (stack(other) - stack(x)).abs().double().amax((0, 1, 3)) > 1e-5
            blocked = moved & ~reach[:, j]
            silent = ~moved & step[:, j] if layers == 1 else torch.zeros(1, dtype=torch.bool)
            wrong += int(blocked.sum() + silent.sum())
        witness = f"{layers} layers on {graph!r}, seed {seed}: nodes moved from beyond, or not from within"
        out.append(Outcome("gnn", subject, form, dtype, float(wrong), 0.0, witness))
    return out


def _shift(subject: str, seed: int, dtype: str, source: Source, limit: int | None) -> list[Outcome]:
    """On a circular grid a shifted image gives the shifted output."""
    grid = (source.size(3, 6, limit), source.size(3, 6, limit))
    by = (source.rng.randint(0, 5), source.rng.randint(0, 5))
    edges = Stencil((3, 2), border="circular")
    n = grid[0] * grid[1]

    def roll(x: Tensor) -> Tensor:
        return x.unflatten(2, grid).roll(by, (2, 3)).flatten(2, 3)

    q, k, v = source.normal(1, 2, n, 3), source.normal(1, 2, n, 3), source.normal(1, 2, n, 3)
    named = {"taps": source.normal(2, 6)}
    bias = {"centre": source.normal(2, 2), "alpha": source.uniform(2)}
    mixers: tuple[tuple[Weights, dict[str, Tensor]], ...] = (
        (Taps(), named), (Softmax(), {}), (Softmax(content=False, bias=Quadratic()), bias)
    )  # fmt: skip
    weights, tensors = source.rng.choice(mixers)
    expected = roll(Case("gnn", seed, torch.float64, edges, weights, q, k, v, tensors, {"grid": grid}).attend("dense"))
    moved = Case("gnn", seed, DTYPES[dtype], edges, weights, roll(q), roll(k), roll(v), tensors, {"grid": grid})
    return _compare(subject, seed, dtype, moved, expected)


def _interior(subject: str, seed: int, dtype: str, source: Source, limit: int | None) -> list[Outcome]:
    """Under any other border the outputs that see no border are shifted."""
    n, by = source.size(12, 40, limit), source.rng.randint(1, 3)
    edges = Stencil(5, border=source.rng.choice(("zeros", "renormalise", "replicate", "reflect")))
    v, named = source.normal(1, 2, n + by, 3), {"taps": source.normal(2, 5)}
    whole = Case("gnn", seed, torch.float64, edges, Taps(), None, None, v[:, :, :n], named).attend("dense")
    expected = whole[:, :, 2 + by : n - 2]
    moved = Case("gnn", seed, DTYPES[dtype], edges, Taps(), None, None, v[:, :, by:], named)
    return _compare(subject, seed, dtype, moved, expected, slice(2, n - 2 - by))
