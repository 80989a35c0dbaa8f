"""Edges: who talks to whom. Receivers i, senders j.

An edge set says which pairs it holds through one tensor function, `relation`; everything else (dense view, edge list, band,
offsets) follows from it, and a class overrides only what it can say better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quadform._errors import Refused
from quadform.algebra._description import Checks, Description, description
from quadform.algebra._edge_list import EdgeList, concatenate, stack_slots
from quadform.algebra._layout import Layout, pair_offsets
from quadform.algebra._reach import Reach, band_columns, larger, smaller, union
from quadform.algebra._views import Pairs, Slots

if TYPE_CHECKING:
    from quadform.algebra._operands import Operands
    from quadform.algebra._weights import Weights


class Edges(Description):
    """Base of all edge sets; `&` filters one by the other, `|` unites, `.T` lets receivers send."""

    @property
    def is_causal(self) -> bool:
        """No sender stands after its receiver."""
        return False

    @property
    def positional(self) -> bool:
        """The edges depend on where queries and keys stand."""
        return True

    @property
    def content(self) -> bool:
        """The edges depend on q and k, and must be resolved before use."""
        return False

    @property
    def by_slots(self) -> bool:
        """The dense view is a table of senders, since an edge may lead to no sender or be told apart by its tap."""
        return False

    @property
    def by_index(self) -> bool:
        """The edges name senders by index in the call's tensors, so columns cannot be gathered by position."""
        return False

    @property
    def reach(self) -> Reach:
        """(left, right): all senders of position p lie in [p - left, p + right]; None where unbounded."""
        return None, None

    @property
    def band(self) -> Reach:
        """As `reach`, without the pairs that `far_columns` and `far_rows` name."""
        return self.reach

    def far_columns(self, at: Layout) -> Tensor | None:
        """Positions (Bp, c) of senders that receivers see from beyond the band, such as sinks; None for none."""
        return None

    def far_rows(self, at: Layout) -> Tensor | None:
        """Positions (Bp, r) of receivers that see beyond the band; None for none."""
        return None

    def relation(self, at: Layout) -> Tensor:
        """How often each pair is an edge: bool or int64, (Bp, Hp, n, m). Sender validity is not included."""
        raise NotImplementedError(f"{type(self).__name__} does not define relation")

    def offsets(self, at: Layout) -> Tensor | None:
        """All offsets (sender - receiver) as (T, g) int64 where edges are the same around every receiver, else None."""
        return None

    def receivers(self, k_len: Tensor, queries: int, keys: int) -> Tensor | None:
        """How many receivers a sequence of k_len senders has, where the edges fix it; else None."""
        return None

    def count_queries(self, keys: int, grid: tuple[int, ...] | None) -> int:
        """How many queries a call without q has."""
        return keys

    def check(self, queries: int, keys: int, grid: tuple[int, ...]) -> None:
        """Raises ArgumentError where these edges do not fit the sizes of a call."""

    def resolve(self, operands: Operands, weights: Weights, within: Edges | None = None) -> Edges:
        """Edges that no longer depend on content: computed once, shared by every form, without gradient."""
        return self

    def view(self, at: Layout, per_edge: bool = False) -> Pairs | Slots:
        """The pairs for dense evaluation, with senders that do not exist taken out."""
        count = self.relation(at)
        if at.k_valid is not None:
            count = (
                count * at.k_valid[:, None, None, :]
                if count.dtype != torch.bool
                else (count & at.k_valid[:, None, None, :])
            )
        return Pairs(count, at)

    def degrees(self, at: Layout) -> Tensor:
        """How many senders each receiver has, counted with multiplicity: (Bp, Hp, n)."""
        return self.view(at).count.sum(-1)

    def edge_list(self, at: Layout, rows: int = 256) -> EdgeList:
        """The edges of a layout with Bp = 1, sorted by receiver; memory O(E + rows * band)."""
        parts: list[EdgeList] = []
        for first in range(0, at.queries, rows):
            block = slice(first, min(first + rows, at.queries))
            columns = band_columns(self.reach, at, block)
            piece = at.block(block, columns)
            count = self.relation(piece)[0, 0]
            if piece.k_valid is not None:
                count = count * piece.k_valid[0]
            receiver, sender = count.nonzero(as_tuple=True)
            offset = pair_offsets(piece)[0, 0][receiver, sender]
            many = None if count.dtype == torch.bool else count[receiver, sender]
            parts.append(EdgeList(receiver + first, sender + columns.start, offset, at.queries, at.keys, many))
        return concatenate(parts, at)

    def __and__(self, other: Edges) -> And:
        return And(self, other)

    def __or__(self, other: Edges) -> Or:
        return Or(self, other)

    @property
    def T(self) -> Edges:
        return Transposed(self)


@dataclass(frozen=True)
class _Pair(Edges):
    left: Edges
    right: Edges

    def __post_init__(self) -> None:
        Checks.instance(self, "left", Edges, "edges")
        Checks.instance(self, "right", Edges, "edges")

    @property
    def positional(self) -> bool:
        return self.left.positional or self.right.positional

    @property
    def content(self) -> bool:
        return self.left.content or self.right.content

    @property
    def by_index(self) -> bool:
        return self.left.by_index or self.right.by_index

    def far_columns(self, at: Layout) -> Tensor | None:
        return union(self.left.far_columns(at), self.right.far_columns(at))

    def far_rows(self, at: Layout) -> Tensor | None:
        return union(self.left.far_rows(at), self.right.far_rows(at))

    def check(self, queries: int, keys: int, grid: tuple[int, ...]) -> None:
        self.left.check(queries, keys, grid)
        self.right.check(queries, keys, grid)


@description
@dataclass(frozen=True)
class And(_Pair):
    """left & right: one filters the other; multiplicities multiply (a plain set counts once).

    Beside other edges `TopK(k)` picks among those edges, so `Causal() & TopK(8)` is causal.
    """

    @property
    def is_causal(self) -> bool:
        return self.left.is_causal or self.right.is_causal

    @property
    def reach(self) -> Reach:
        return smaller(self.left.reach, self.right.reach)

    @property
    def band(self) -> Reach:
        return smaller(self.left.band, self.right.band)

    def relation(self, at: Layout) -> Tensor:
        a, b = self.left.relation(at), self.right.relation(at)
        return a & b if a.dtype == b.dtype == torch.bool else a * b

    def offsets(self, at: Layout) -> Tensor | None:
        a, b = self.left.offsets(at), self.right.offsets(at)
        if a is None or b is None:
            return None
        return a[(a[:, None, :] == b[None, :, :]).all(-1).any(-1)]

    def resolve(self, operands: Operands, weights: Weights, within: Edges | None = None) -> Edges:
        from_left = getattr(self.left, "ranks", False)
        first, last = (self.right, self.left) if from_left else (self.left, self.right)
        first = first.resolve(operands, weights, within)
        if getattr(last, "ranks", False):
            return last.resolve(operands, weights, first if within is None else And(first, within))
        return And(first, last.resolve(operands, weights, within))

    def __str__(self) -> str:
        return f"({self.left} & {self.right})"

    __repr__ = __str__


@description
@dataclass(frozen=True)
class Or(_Pair):
    """left | right: the union; a pair counts as often as in the side that names it more often."""

    @property
    def is_causal(self) -> bool:
        return self.left.is_causal and self.right.is_causal

    @property
    def reach(self) -> Reach:
        return larger(self.left.reach, self.right.reach)

    @property
    def band(self) -> Reach:
        return larger(self.left.band, self.right.band)

    def relation(self, at: Layout) -> Tensor:
        a, b = self.left.relation(at), self.right.relation(at)
        return a | b if a.dtype == b.dtype == torch.bool else torch.maximum(a.long(), b.long())

    def offsets(self, at: Layout) -> Tensor | None:
        a, b = self.left.offsets(at), self.right.offsets(at)
        return None if a is None or b is None else torch.unique(torch.cat([a, b]), dim=0)

    def resolve(self, operands: Operands, weights: Weights, within: Edges | None = None) -> Edges:
        return Or(self.left.resolve(operands, weights, within), self.right.resolve(operands, weights, within))

    def __str__(self) -> str:
        return f"({self.left} | {self.right})"

    __repr__ = __str__


class GridEdges(Edges):
    """Edges that number their own receivers, so that the transpose must ask for the grid of senders."""

    def senders(self, q_len: Tensor, senders: int, receivers: int) -> Tensor:
        """How many senders a row has of which q_len of the `receivers` exist, when `senders` have all of them."""
        raise NotImplementedError(f"{type(self).__name__} does not define senders")

    def senders_grid(self, grid: tuple[int, ...], senders: int) -> tuple[int, ...]:
        """The grid of `senders` whose receivers are numbered by `grid`."""
        raise NotImplementedError(f"{type(self).__name__} does not define senders_grid")

    def count_senders(self, keys: int, grid: tuple[int, ...] | None) -> int:
        """The least number of senders that has that many receivers."""
        raise NotImplementedError(f"{type(self).__name__} does not define count_senders")


@description
@dataclass(frozen=True)
class Transposed(Edges):
    """edges.T: j -> i becomes i -> j. `Stencil(...).T` is the transposed convolution."""

    inner: Edges

    def __post_init__(self) -> None:
        Checks.instance(self, "inner", Edges, "edges")

    @property
    def T(self) -> Edges:
        return self.inner

    @property
    def positional(self) -> bool:
        return self.inner.positional

    @property
    def content(self) -> bool:
        return self.inner.content

    @property
    def by_slots(self) -> bool:
        return self.inner.by_slots

    @property
    def by_index(self) -> bool:
        return self.inner.by_index

    @property
    def reach(self) -> Reach:
        return self.inner.reach[::-1]

    def check(self, queries: int, keys: int, grid: tuple[int, ...]) -> None:
        self.inner.check(
            keys, queries, self.inner.senders_grid(grid, queries) if isinstance(self.inner, GridEdges) else grid
        )

    def relation(self, at: Layout) -> Tensor:
        grid = self.inner.senders_grid(at.grid, at.queries) if isinstance(self.inner, GridEdges) else at.grid
        return self.inner.relation(at.swapped(grid)).transpose(-1, -2)

    def offsets(self, at: Layout) -> Tensor | None:
        if isinstance(self.inner, GridEdges):
            return None
        inner = self.inner.offsets(at.swapped(at.grid))
        return None if inner is None else -inner

    def receivers(self, k_len: Tensor, queries: int, keys: int) -> Tensor | None:
        return self.inner.senders(k_len, queries, keys) if isinstance(self.inner, GridEdges) else None

    def count_queries(self, keys: int, grid: tuple[int, ...] | None) -> int:
        return self.inner.count_senders(keys, grid) if isinstance(self.inner, GridEdges) else keys

    def resolve(self, operands: Operands, weights: Weights, within: Edges | None = None) -> Edges:
        if self.inner.content:
            raise Refused(f"{self.inner} depends on q and k: its transpose would hash or rank keys as queries")
        return self

    def view(self, at: Layout, per_edge: bool = False) -> Pairs | Slots:
        if isinstance(self.inner, GridEdges):
            return stack_slots([self.edge_list(at.row(b)).slots(at.row(b)) for b in range(at.rows)], at)
        return super().view(at, per_edge)

    def edge_list(self, at: Layout, rows: int = 256) -> EdgeList:
        if not isinstance(self.inner, GridEdges):
            return super().edge_list(at, rows)
        back = self.inner.edge_list(at.swapped(self.inner.senders_grid(at.grid, at.queries)))
        back = back.take(back.sender < back.keys)
        order = torch.argsort(back.sender, stable=True)
        back = back.take(order)
        here = EdgeList(back.sender, back.receiver, -back.offset, at.queries, at.keys, back.count, back.tap, back.edge)
        return here if at.k_valid is None else here.take(at.k_valid[0][here.sender])

    def __str__(self) -> str:
        return f"{self.inner}.T"

    __repr__ = __str__
