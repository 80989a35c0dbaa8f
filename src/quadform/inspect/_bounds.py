"""Lower bounds on the error of every kernel, or hybrid of near weights and a kernel, in place of a head's weights.

Where a kernel with m features computes all pairs of a block I x J, its weights there are diag(1 / z_i) Phi_I Phi_J', of
rank m at most. By Eckart and Young no such block is closer to A[I, J] than the tail, the sum over r > m of sigma_r^2,
and the tails of disjoint blocks add up. docs/bounds.md has the proofs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from quadform._errors import ArgumentError, QuadformError
from quadform.inspect._block import sinks
from quadform.inspect._captured import Captured
from quadform.inspect.candidates import NEAR

ELEMENTS = 2**21
"""How many float64 numbers an intermediate tensor holds at most, unless one block of one head has more."""
WHOLE, PART = 1024, 512
"""Sequences longer than WHOLE have their blocks cut into parts of at most PART x PART."""
CELLS = 128
"""Blocks are searched on a lattice of at most this many cells a side."""
RANK_ERROR = 0.05
"""Relative error that the numerical rank allows."""

Span = tuple[int, int, int, int]
"""A rectangle: (first row, end of rows, first column, end of columns)."""


class Bounds:
    """Lower bounds on sqrt(sum ||A - A'||_F^2 / sum ||A||_F^2) for one attention site, over a stream of calls.

    A are the softmax weights in float64; the sums run over all sequences, in the rows that `Captured.valid` keeps.

    - "kernel": A'_ij = phi(q_i)'phi(k_j) / z_i on the pairs that the head keeps and 0 elsewhere, for any phi of m
      features and any z; for causal heads also with decay, and with any diagonal.
    - "hybrid": the same, except for any weights at all in the near band and in the sink columns. The near band has 32
      tokens (causal heads: the last 32; else 16 to either side); on a grid of width w it is the 3 w + 3 keys to either
      side that hold the 7 x 7 cells around the query; cross-attention has none.

    Time grows with the cube of the block size. Sequences of more than 1024 tokens have their blocks cut into parts of
    at most 512 x 512, which weakens the bound. Every eigenvalue is lowered by the largest rounding error that it may
    carry, so that bounds below about 2e-6 (2e-5 for blocks of 1024) may come out as 0.
    """

    def __init__(self, features: tuple[int, ...] = (8, 16, 32, 64, 128)) -> None:
        if not features or min(features) < 1:
            raise ArgumentError("features", "numbers of features of at least 1", features)
        self.features = features
        self._energy = self._rank = self._ranked = torch.zeros(0)
        self._tails: dict[str, Tensor] = {}

    def add(self, captured: Captured) -> None:
        """Adds one call; raises QuadformError where weights are not finite."""
        with torch.no_grad():
            for batch in range(len(captured.q)):
                self._add(_Sequence(captured, batch))

    def _add(self, sequence: _Sequence) -> None:
        energy = sequence.energy
        if not self._tails:
            self._energy, self._rank, self._ranked = (torch.zeros_like(energy) for _ in range(3))
            self._tails = {name: energy.new_zeros(len(energy), len(self.features)) for name in ("kernel", "hybrid")}
        self._energy += energy
        for family, tails in self._tails.items():
            for heads, span in sequence.blocks(family == "hybrid", min(self.features)):
                dropped = sequence.spectrum(heads, span).cumsum(-1)
                side = dropped.shape[-1]
                for at, m in enumerate(self.features):
                    if side > m:
                        tails[heads, at] += dropped[:, side - m - 1]
                if family == "kernel" and span == sequence.whole:
                    small = dropped <= RANK_ERROR**2 * energy[heads, None]
                    self._rank[heads] += (side - small.sum(-1)).to(energy)
                    self._ranked[heads] += (energy[heads] > 0).to(energy)

    def values(self) -> list[dict[str, dict[str, float]]]:
        """For each query head {"kernel": {"16": bound, ...}, "hybrid": {...}}, by the number of features."""
        found: list[dict[str, dict[str, float]]] = [{} for _ in range(len(self._energy))]
        for family, tails in self._tails.items():
            bounds = (tails / self._energy[:, None].clamp(min=1e-300)).sqrt().tolist()
            for head, row in zip(found, bounds, strict=True):
                head[family] = {str(m): bound for m, bound in zip(self.features, row, strict=True)}
        return found

    def ranks(self) -> list[float]:
        """For each query head the mean over sequences of the least r with a rank-r error of at most 5 %.

        NaN for heads whose kernel bound does not decompose whole matrices: causal ones, masks, long sequences.
        """
        return (self._rank / self._ranked).tolist()


class _Sequence:
    """One sequence of a call, without the queries that are not measured and the keys that nobody sees.

    Attributes:
        whole: (0, number of queries, 0, number of keys).
        energy: (H), ||A||_F^2.
    """

    def __init__(self, captured: Captured, batch: int) -> None:
        self.captured, self.keep = captured, captured.keep[batch]
        self.bias = None if captured.bias is None else captured.bias[batch if len(captured.bias) > 1 else 0]
        self.queries, self.keys = captured.valid[batch].nonzero()[:, 0], captured.seen[batch].nonzero()[:, 0]
        self.sinks = sinks(captured)[batch, self.keys]
        self.q, self.k = captured.q[batch][:, self.queries].double(), captured.k[batch][:, self.keys].double()
        self.heads = torch.arange(len(self.q), device=self.q.device)
        self.whole: Span = (0, len(self.queries), 0, len(self.keys))
        self.log_sums = self.q.new_zeros(self.q.shape[:2])
        self.energy = self.q.new_zeros(len(self.q))
        self._normalise()

    def _normalise(self) -> None:
        _, queries, _, keys = self.whole
        count = max(1, ELEMENTS // max(1, len(self.heads) * keys))
        for first in range(0, queries if keys else 0, count):
            rows = slice(first, first + count)
            scores = self._scores(self.heads, rows, slice(0, keys))
            sums = scores.logsumexp(-1)
            if self.captured.sink is not None:
                sums = torch.logaddexp(sums, self.captured.sink.double()[:, None])
            sums = sums.masked_fill(sums == -torch.inf, 0.0)
            self.log_sums[:, rows] = sums
            self.energy += (scores - sums[..., None]).exp().square().sum((1, 2))
        if not bool(self.energy.isfinite().all()):
            raise QuadformError(f"{self.captured.module}: the attention weights are not finite")

    def _at(self, values: Tensor, heads: Tensor, rows: slice, columns: slice) -> Tensor:
        """Values (1 or H, N, M) of some heads, queries and keys."""
        heads = heads if len(values) > 1 else heads[:1] * 0
        return values[heads[:, None, None], self.queries[rows, None], self.keys[columns]]

    def _scores(self, heads: Tensor, rows: slice, columns: slice) -> Tensor:
        """(heads, rows, columns); minus infinity where the mask forbids the pair."""
        captured, groups = self.captured, len(self.q) // len(self.k)
        scores = self.q[heads, rows] @ self.k[heads // groups, columns].mT * captured.scaling
        if captured.softcap is not None:
            scores = captured.softcap * (scores / captured.softcap).tanh()
        if self.bias is not None:
            scores = scores + self._at(self.bias, heads, rows, columns).double()
        return scores.masked_fill(~self._at(self.keep, heads, rows, columns), -torch.inf)

    def spectrum(self, heads: Tensor, span: Span) -> Tensor:
        """(heads, shorter side): squared singular values of a block of A, ascending, less their rounding error.

        Those of the float64 Gram matrix, which costs about 0.65 of a singular value decomposition. Gram matrix and
        eigenvalues each carry at most about side eps / 2 times the trace, where side is the longer one.
        """
        rows, columns = slice(*span[:2]), slice(*span[2:])
        longer = max(span[1] - span[0], span[3] - span[2])
        found = []
        for some in heads.split(max(1, ELEMENTS // ((span[1] - span[0]) * (span[3] - span[2])))):
            block = (self._scores(some, rows, columns) - self.log_sums[some, rows, None]).exp()
            block = block if block.shape[1] <= block.shape[2] else block.mT
            gram = block @ block.mT
            trace = gram.diagonal(dim1=1, dim2=2).sum(-1, keepdim=True)
            rounding = longer * torch.finfo(gram.dtype).eps * trace
            found.append((torch.linalg.eigvalsh(gram) - rounding).clamp(min=0.0))
        return torch.cat(found)

    def blocks(self, hybrid: bool, least: int) -> Iterator[tuple[Tensor, Span]]:
        """(heads, block): disjoint blocks that a kernel computes whole, for each group of heads of the same mask."""
        _, queries, _, keys = self.whole
        if not queries or not keys:
            return
        cell = -(-max(queries, keys) // CELLS)
        groups: dict[bytes, list[int]] = {}
        for head in range(len(self.keep)):
            groups.setdefault(self._free(head, hybrid, cell), []).append(head)
        for free, members in groups.items():
            heads = self.heads if len(self.keep) == 1 else self.heads[members]
            for found in _rectangles(free, -(-queries // cell), -(-keys // cell), least // cell):
                first, end, left, right = (at * cell for at in found)
                span = (first, min(end, queries), left, min(right, keys))
                for part in _cut(span, PART) if max(queries, keys) > WHOLE else [span]:
                    yield heads, part

    def _free(self, head: int, hybrid: bool, cell: int) -> bytes:
        """One byte for each cell x cell pairs, row by row: 1 where the kernel alone computes all of them."""
        left, right = _reach(self.captured)
        strips = []
        for rows in self.queries.split(cell * max(1, ELEMENTS // (cell * len(self.keys)))):
            free, offset = self.keep[head, rows[:, None], self.keys], self.keys - rows[:, None]
            if self.captured.causal:
                free = free & (offset < 0)
            if hybrid:
                free = free & ~self.sinks
                if not self.captured.cross:
                    free = free & ((offset < -left) | (offset > right))
            padding = (0, -free.shape[1] % cell, 0, -free.shape[0] % cell)
            free = torch.nn.functional.pad(free, padding, value=True)
            strips.append(free.view(free.shape[0] // cell, cell, -1, cell).all(-1).all(1))
        return bytes(torch.cat(strips).flatten().to(torch.uint8).tolist())


def _reach(captured: Captured) -> tuple[int, int]:
    """How many keys before and after the query the near band has."""
    before, after, stride = 0, 0, 1
    for size, (back, ahead) in zip(reversed(captured.place.sizes), reversed(NEAR.reach(captured)), strict=True):
        before, after, stride = before + back * stride, after + ahead * stride, stride * size
    return before, after


@lru_cache(maxsize=256)
def _rectangles(free: bytes, rows: int, columns: int, least: int) -> tuple[Span, ...]:
    """Disjoint rectangles of the cells marked 1 in `free` (rows x columns, row by row), whose sides exceed `least`.

    Repeats: takes the largest square, extends it as far as it stays free, and removes it. Below a diagonal this is the
    dyadic partition: rows n/2 .. n by columns 0 .. n/2, then both halves in the same way.
    """
    cells = torch.tensor(list(free), dtype=torch.bool).view(rows, columns)
    if bool(cells.all()):
        return ((0, rows, 0, columns),)
    found: list[Span] = []
    limit = min(rows, columns)
    while True:
        limit, row, column = _square(cells, limit)
        if limit <= least:
            return tuple(found)
        first, end, left, right = row, row + limit, column, column + limit
        while end < rows and bool(cells[end, left:right].all()):
            end += 1
        while first and bool(cells[first - 1, left:right].all()):
            first -= 1
        while right < columns and bool(cells[first:end, right].all()):
            right += 1
        while left and bool(cells[first:end, left - 1].all()):
            left -= 1
        cells[first:end, left:right] = False
        found.append((first, end, left, right))


def _cut(span: Span, side: int) -> list[Span]:
    """A rectangle in parts of nearly equal sides of at most `side`."""
    rows, columns = _edges(*span[:2], side), _edges(*span[2:], side)
    return [(*row, *column) for row in rows for column in columns]


def _edges(first: int, end: int, side: int) -> list[tuple[int, int]]:
    parts = -(-(end - first) // side)
    return list(pairwise(first + (end - first) * part // parts for part in range(parts + 1)))


def _square(cells: Tensor, limit: int) -> tuple[int, int, int]:
    """(side, row, column) of the first square of the largest side up to `limit` that holds no 0; side 0 without one."""
    sums = torch.nn.functional.pad(cells.to(torch.int32), (1, 0, 1, 0)).cumsum(0).cumsum(1)
    low, high, row, column = 0, limit, 0, 0
    side = limit
    while low < high:
        counts = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
        full = (counts == side * side).flatten()
        at = int(full.to(torch.uint8).argmax())
        if bool(full[at]):
            low, row, column = side, at // counts.shape[1], at % counts.shape[1]
        else:
            high = side - 1
        side = (low + high + 1) // 2
    return low, row, column
