"""The four views of a head, small enough to draw: matrix, kernel, graph and state."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.inspect._block import blocks
from quadform.inspect._captured import Captured

SIDE = 64
EXCERPT = 32
EDGES = 40
REACH = 64


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
        first = int(captured.valid[row].int().argmax())
        n = int(captured.valid[row].sum())
        heads, self.side, self.excerpt = captured.q.shape[1], max(1, min(n, SIDE)), min(n, EXCERPT)
        self._sums = torch.zeros(heads, self.side, self.side, dtype=torch.float64, device=captured.q.device)
        self._edges = torch.zeros(heads, self.excerpt, self.excerpt, dtype=torch.float64, device=captured.q.device)
        tokens = slice(first, first + n)
        q, k, v, output = (x[row : row + 1, :, tokens] for x in (captured.q, captured.k, captured.v, captured.output))
        keep = captured.keep[row : row + 1, :, tokens, tokens]
        sequence = Captured(captured.module, captured.call, q, k, v, keep, captured.scaling, output)
        bins = torch.arange(n, device=captured.q.device) * self.side // max(1, n)
        for block in blocks(sequence):
            weights = block.weights[0].double()
            start, stop = block.first, block.first + weights.shape[1]
            columns = torch.zeros(heads, stop - start, self.side, dtype=torch.float64, device=weights.device)
            self._sums.index_add_(1, bins[start:stop], columns.index_add_(2, bins, weights))
            shown = max(0, min(stop, self.excerpt) - start)
            self._edges[:, start : start + shown] = weights[:, :shown, : self.excerpt]
        counts = torch.bincount(bins, minlength=self.side).double()
        self._means = self._sums / (counts[:, None] * counts)

    def views(self, head: int, sums: dict[str, Tensor]) -> Views:
        """The views of a head; `sums` are those of the structure statistics."""
        means = self._means[head]
        peak = float(means.max())
        levels = (255 * (means / max(peak, 1e-300)).sqrt()).round().to(torch.uint8)
        edges = self._strongest(self._edges[head])
        distances, past, future = _beyond(sums["offset_far"][head], float(sums["rows"][head]))
        return Views(
            side=self.side,
            peak=_short(peak),
            matrix=base64.b64encode(bytes(levels.flatten().tolist())).decode(),
            kernel=_kernel(sums["offset_weight"][head], sums["offset_pairs"][head]),
            edges=edges,
            edge_share=_short(sum(weight for *_, weight in edges) / max(1, self.excerpt)),
            distances=distances,
            beyond_past=past,
            beyond_future=future,
        )

    def _strongest(self, weights: Tensor) -> list[tuple[int, int, float]]:
        values, order = weights.flatten().topk(min(EDGES, weights.numel()))
        pairs = zip(values.tolist(), order.tolist(), strict=True)
        return [(at // self.excerpt, at % self.excerpt, _short(value)) for value, at in pairs if value >= 0.01]


def _kernel(weight: Tensor, pairs: Tensor) -> list[float]:
    n = (weight.numel() + 1) // 2
    reach = min(n - 1, REACH)
    means = (weight / pairs.clamp(min=1))[n - 1 - reach : n + reach]
    return [_short(value) for value in means.tolist()]


def _beyond(far: Tensor, rows: float) -> tuple[list[int], list[float], list[float]]:
    n = (far.numel() + 1) // 2
    past, future = far[:n].flip(0), far[n - 1 :]
    distances = [d for d in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 31, 48, 64, 96, 128) if d < n]
    while distances[-1] * 2 < n:
        distances.append(distances[-1] * 2)
    tails = [[_short(float(side[d + 1 :].sum()) / max(rows, 1.0)) for d in distances] for side in (past, future)]
    return distances, tails[0], tails[1]


def _short(value: float) -> float:
    """Three significant digits: enough to draw."""
    return float(f"{value:.3g}")
