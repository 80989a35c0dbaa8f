"""An edge set as a list sorted by receiver: what message passing walks along."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.algebra._layout import Layout
from quadform.algebra._views import Slots


@dataclass(frozen=True, eq=False)
class EdgeList:
    """E edges, sorted by receiver (and stable in the order in which the edge set names them).

    Attributes:
        receiver, sender: (E,) int64; a sender equal to `keys` is the zero sender beyond a border.
        count: (E,) int64 multiplicity, or None where every edge counts once.
        offset: (E, g) int64, position of the sender minus that of the receiver.
        tap: (E,) int64 tap index, or None. edge: (E,) index into edge_index, or None.
        queries, keys: how many receivers and senders there are.
    """

    receiver: Tensor
    sender: Tensor
    offset: Tensor
    queries: int
    keys: int
    count: Tensor | None = None
    tap: Tensor | None = None
    edge: Tensor | None = None

    def take(self, keep: Tensor) -> EdgeList:
        """The edges that a bool or index tensor picks, in that order."""

        def pick(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[keep]

        return EdgeList(
            self.receiver[keep],
            self.sender[keep],
            self.offset[keep],
            self.queries,
            self.keys,
            pick(self.count),
            pick(self.tap),
            pick(self.edge),
        )

    def slots(self, at: Layout) -> Slots:
        """The same edges as a table with as many columns as the largest in-degree."""
        degree = torch.bincount(self.receiver, minlength=self.queries)
        width = int(degree.max()) if degree.numel() else 0
        start = degree.cumsum(0) - degree
        column = torch.arange(self.receiver.numel(), device=self.receiver.device) - start[self.receiver]

        def table(x: Tensor | None, fill: int) -> Tensor | None:
            if x is None:
                return None
            out = x.new_full((self.queries, width, *x.shape[1:]), fill)
            out[self.receiver, column] = x
            return out[None, None]

        index, offset = table(self.sender, self.keys), table(self.offset, 0)
        count = table(torch.ones_like(self.sender) if self.count is None else self.count, 0)
        assert index is not None and offset is not None and count is not None
        count = count > 0 if self.count is None else count
        return Slots(index, count, offset, at, table(self.tap, 0), table(self.edge, 0))


def from_slots(slots: Slots, at: Layout) -> EdgeList:
    """The used slots of the first row of a batch, as a list."""
    index, used = slots.index[0, 0], slots.count[0, 0] > 0
    receiver = torch.arange(index.shape[0], device=index.device)[:, None].expand_as(index)
    shape = (*index.shape, slots.offset.shape[-1])
    offset = slots.offset.expand(1, 1, *shape)[0, 0]
    tap = None if slots.taps is None else slots.taps.expand(1, 1, *index.shape)[0, 0][used]
    edge = None if slots.edges is None else slots.edges[0, 0][used]
    return EdgeList(receiver[used], index[used], offset[used], at.queries, at.keys, None, tap, edge)


def stack_slots(rows: list[Slots], at: Layout) -> Slots:
    """The tables of the rows of a batch as one, as wide as the widest."""
    if len(rows) == 1:
        return rows[0]
    width = max(r.index.shape[-1] for r in rows)

    def join(parts: list[Tensor | None], fill: int) -> Tensor | None:
        wide = []
        for x in parts:
            if x is None:
                return None
            missing = list(x.shape)
            missing[3] = width - x.shape[3]
            wide.append(torch.cat([x, x.new_full(missing, fill)], 3))
        return torch.cat(wide)

    index, count = join([r.index for r in rows], at.keys), join([r.count.long() for r in rows], 0)
    offset = join([r.offset for r in rows], 0)
    assert index is not None and count is not None and offset is not None
    return Slots(index, count, offset, at, join([r.taps for r in rows], 0), join([r.edges for r in rows], 0))


def concatenate(parts: list[EdgeList], at: Layout) -> EdgeList:
    """The edges of a layout's blocks of receivers, in that order, as one list."""
    device, g = at.q_pos.device, len(at.grid)
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    parts = parts or [EdgeList(empty, empty, empty.new_zeros(0, g), at.queries, at.keys)]
    receiver, sender, offset = (torch.cat([getattr(p, f) for p in parts]) for f in ("receiver", "sender", "offset"))
    counts = [p.count for p in parts]
    many = None if any(c is None for c in counts) else torch.cat([c for c in counts if c is not None])
    return EdgeList(receiver, sender, offset, at.queries, at.keys, many)
