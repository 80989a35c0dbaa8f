"""Graph edges: any list of (sender, receiver) pairs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._description import description
from quadform.algebra._edge_list import EdgeList
from quadform.algebra._edges import Edges
from quadform.algebra._layout import Layout, coordinates
from quadform.algebra._views import Pairs, Slots


@description
@dataclass(frozen=True, eq=False)
class Graph(Edges):
    """The edges of a graph: j in E(i) for every column (j, i) of `edge_index`.

    Node numbers are indices into q and into k, v; a padding mask removes senders and moves nothing. An edge named twice
    counts twice. Edge tensors of a call are in the order of `edge_index`. A Graph is equal to itself alone.

    Args:
        edge_index: (2, E) integers, the sender (source) in the first row and the receiver (target) in the second.
        num_nodes: how many nodes there are, or (senders, receivers) of a bipartite graph.

    Errors: ArgumentError for a wrong shape or dtype, or a node number out of range.

    Reference:

        for j, i in edge_index.T.tolist():
            count[i, j] += 1
    """

    edge_index: Any
    num_nodes: int | tuple[int, int]

    def __post_init__(self) -> None:
        index = self.edge_index
        if not isinstance(index, Tensor):
            try:
                index = torch.tensor(index, dtype=torch.int64).reshape(2, -1)
            except (ValueError, TypeError, RuntimeError):
                raise ArgumentError("Graph.edge_index", "an integer tensor of shape (2, E)", repr(index)[:60]) from None
        if index.dim() != 2 or index.shape[0] != 2 or index.is_floating_point() or index.dtype == torch.bool:
            raise ArgumentError(
                "Graph.edge_index", "an integer tensor of shape (2, E)", f"{index.dtype} {tuple(index.shape)}"
            )
        nodes = self.num_nodes
        if isinstance(nodes, int) and not isinstance(nodes, bool):
            nodes = (nodes, nodes)
        if (
            not isinstance(nodes, tuple | list)
            or len(nodes) != 2
            or any(not isinstance(n, int) or n < 0 for n in nodes)
        ):
            raise ArgumentError("Graph.num_nodes", "a count, or (senders, receivers)", repr(self.num_nodes))
        if index.numel():
            for row, limit, which in ((0, nodes[0], "senders"), (1, nodes[1], "receivers")):
                low, high = int(index[row].min()), int(index[row].max())
                if low < 0 or high >= limit:
                    raise ArgumentError("Graph.edge_index", f"{which} between 0 and {limit - 1}", f"{low} to {high}")
        object.__setattr__(self, "edge_index", index.long().contiguous())
        object.__setattr__(self, "num_nodes", self.num_nodes if isinstance(self.num_nodes, int) else tuple(nodes))

    @property
    def sizes(self) -> tuple[int, int]:
        """(senders, receivers)."""
        return (self.num_nodes, self.num_nodes) if isinstance(self.num_nodes, int) else self.num_nodes

    @property
    def num_edges(self) -> int:
        return int(self.edge_index.shape[1])

    @property
    def positional(self) -> bool:
        return False

    @property
    def by_index(self) -> bool:
        return True

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor, Tensor]:
        order = torch.argsort(self.edge_index[1], stable=True)
        return self.edge_index[1][order], self.edge_index[0][order], order

    def check(self, queries: int, keys: int, grid: tuple[int, ...]) -> None:
        if (keys, queries) != self.sizes:
            raise ArgumentError(
                "Graph.num_nodes", f"{keys} senders and {queries} receivers, as in k and q", str(self.sizes)
            )

    def count_queries(self, keys: int, grid: tuple[int, ...] | None) -> int:
        return self.sizes[1]

    def relation(self, at: Layout) -> Tensor:
        first, left = at.origin
        source, target = self.edge_index.to(at.q_pos.device)
        source, target = source - left, target - first
        here = (source >= 0) & (source < at.keys) & (target >= 0) & (target < at.queries)
        count = torch.zeros(at.queries, at.keys, dtype=torch.int64, device=at.q_pos.device)
        count.index_put_(
            (target[here], source[here]), torch.ones((), dtype=torch.int64, device=count.device), accumulate=True
        )
        return count[None, None]

    def view(self, at: Layout, per_edge: bool = False) -> Pairs | Slots:
        if not per_edge:
            return super().view(at)
        slots = self.edge_list(dataclasses.replace(at.row(0), k_valid=None)).slots(at)
        if at.k_valid is None:
            return slots
        keep = torch.nn.functional.pad(at.k_valid, (0, 1))[:, None, None, :]
        index = slots.index.expand(keep.shape[0], -1, -1, -1)
        kept = keep.expand(*index.shape[:3], -1).gather(-1, index)
        return Slots(index, slots.count & kept, slots.offset, at, None, slots.edges)

    def degrees(self, at: Layout) -> Tensor:
        receiver, sender, _ = (t.to(at.q_pos.device) for t in self._sorted)
        kept = (
            torch.ones(1, at.keys, dtype=torch.int64, device=receiver.device)
            if at.k_valid is None
            else at.k_valid.long()
        )
        return kept.new_zeros(kept.shape[0], at.queries).index_add(1, receiver, kept[:, sender])[:, None]

    def edge_list(self, at: Layout, rows: int = 256) -> EdgeList:
        receiver, sender, edge = (t.to(at.q_pos.device) for t in self._sorted)
        q, k = coordinates(at.q_pos[0], at.grid), coordinates(at.k_pos[0], at.grid)
        offset = torch.stack([b[sender] - a[receiver] for a, b in zip(q, k, strict=True)], -1)
        out = EdgeList(receiver, sender, offset, at.queries, at.keys, None, None, edge)
        return out if at.k_valid is None else out.take(at.k_valid[0][sender])

    def __repr__(self) -> str:
        if self.num_edges <= 12:
            return f"Graph({self.edge_index.tolist()}, {self.num_nodes})"
        return f"Graph(edge_index=<{self.num_edges} edges>, num_nodes={self.num_nodes})"

    __str__ = __repr__
