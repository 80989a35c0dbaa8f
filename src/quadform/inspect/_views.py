"""The four views of a head, small enough to draw: matrix, kernel, graph and state."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.inspect._block import blocks
from quadform.inspect._captured import Captured
from quadform.inspect._grid import Grid
from quadform.inspect._structure import by_distance

SIDE = 64
EXCERPT = 32
EDGES = 40
REACH = {1: 64, 2: 8}
"""How far the kernel view goes in each dimension, by their number."""


@dataclass(frozen=True)
class Views:
    """What the report draws of one head.

    Attributes:
        side: the matrix view has side x side cells.
        peak: the weight that the level 255 stands for.
        matrix: base64 of side * side bytes, rows first: 255 * sqrt(mean weight of the cell / peak).
        kernel: mean weight for each j - i, from -reach to reach in every dimension, the last one fastest; empty for
            cross-attention, where j - i means nothing.
        reach: in each dimension of the grid.
        edges: [receiver, sender, weight] within the excerpt, strongest first.
        edge_share: share of the excerpt's weight that these edges carry, the rest of the sequence included.
        distances: tokens d; on a grid, cells in the dimension where they are most.
        beyond_past, beyond_future: mean weight, sinks apart, on keys more than d before or after in reading order;
            empty for cross-attention.
    """

    side: int
    peak: float
    matrix: str
    kernel: list[float]
    reach: list[int]
    edges: list[tuple[int, int, float]]
    edge_share: float
    distances: list[int]
    beyond_past: list[float]
    beyond_future: list[float]


class Snapshot:
    """The pooled weights and the excerpt of one sequence, taken block by block."""

    def __init__(self, captured: Captured, row: int = 0) -> None:
        sequence = captured.sequence(row)
        shown = sequence.seen[0] if captured.queries is None and not captured.cross else sequence.valid[0]
        receivers, senders = shown.nonzero()[:, 0], sequence.seen[0].nonzero()[:, 0]
        n, m, heads, device = len(receivers), len(senders), captured.q.shape[1], captured.q.device
        self.side = max(1, min(n, m, SIDE))
        self.excerpt = min(n, EXCERPT)
        self._sums = torch.zeros(heads, self.side, self.side, dtype=torch.float64, device=device)
        self._edges = torch.zeros(heads, self.excerpt, min(m, EXCERPT), dtype=torch.float64, device=device)
        bins = [torch.arange(count, device=device) * self.side // max(1, count) for count in (n, m)]
        for block in blocks(sequence):
            inside = (receivers >= block.rows.start) & (receivers < block.rows.stop)
            weights = block.weights[0, :, receivers[inside] - block.first][..., senders].double()
            columns = torch.zeros(heads, weights.shape[1], self.side, dtype=torch.float64, device=device)
            self._sums.index_add_(1, bins[0][inside], columns.index_add_(2, bins[1], weights))
            ranks = inside.nonzero()[:, 0]
            early = ranks < self.excerpt
            self._edges[:, ranks[early]] = weights[:, early, : self._edges.shape[-1]]
        counts = [torch.bincount(numbers, minlength=self.side).double().clamp(min=1) for numbers in bins]
        self._means = self._sums / (counts[0][:, None] * counts[1])

    def views(self, head: int, sums: dict[str, Tensor], place: Grid) -> Views:
        """The views of a head; `sums` are those of the structure statistics."""
        means = self._means[head]
        peak = float(means.max())
        levels = (255 * (means / max(peak, 1e-300)).sqrt()).round().to(torch.uint8)
        edges = self._strongest(self._edges[head])
        kernel: list[float] = []
        past: list[float] = []
        future: list[float] = []
        reach: list[int] = []
        apart: list[int] = []
        if "offset_far" in sums:
            kernel, reach = _kernel(sums["offset_weight"][head], sums["offset_pairs"][head], place)
            apart, past, future = _beyond(sums["offset_far"][head], float(sums["rows"][head]), place)
        return Views(
            side=self.side,
            peak=_short(peak),
            matrix=base64.b64encode(bytes(levels.flatten().tolist())).decode(),
            kernel=kernel,
            reach=reach,
            edges=edges,
            edge_share=_short(sum(weight for *_, weight in edges) / max(1, self.excerpt)),
            distances=apart,
            beyond_past=past,
            beyond_future=future,
        )

    def _strongest(self, weights: Tensor) -> list[tuple[int, int, float]]:
        values, order = weights.flatten().topk(min(EDGES, weights.numel()))
        pairs = zip(values.tolist(), order.tolist(), strict=True)
        width = max(1, weights.shape[1])
        return [(at // width, at % width, _short(value)) for value, at in pairs if value >= 0.01]


def _kernel(weight: Tensor, pairs: Tensor, place: Grid) -> tuple[list[float], list[int]]:
    """(mean weight at each offset, reach in each dimension)."""
    means = (weight / pairs.clamp(min=1)).view([2 * size - 1 for size in place.sizes])
    reach = [min(size - 1, REACH[min(place.dims, 2)]) for size in place.sizes]
    for at, (size, far) in enumerate(zip(place.sizes, reach, strict=True)):
        means = means.narrow(at, size - 1 - far, 2 * far + 1)
    return [_short(value) for value in means.flatten().tolist()], reach


def _beyond(far: Tensor, rows: float, place: Grid) -> tuple[list[int], list[float], list[float]]:
    centre, longest = len(far) // 2, max(place.sizes)
    past, future = far.clone()[None], far.clone()[None]
    past[:, centre:], future[:, : centre + 1] = 0.0, 0.0
    apart = [d for d in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 31, 48, 64, 96, 128) if d < longest]
    while apart[-1] * 2 < longest and apart[-1]:
        apart.append(apart[-1] * 2)
    sides = [by_distance(side, place)[0] for side in (past, future)]
    tails = [[_short(float(side[d + 1 :].sum()) / max(rows, 1.0)) for d in apart] for side in sides]
    return apart, tails[0], tails[1]


def _short(value: float) -> float:
    """Three significant digits: enough to draw."""
    return float(f"{value:.3g}")
