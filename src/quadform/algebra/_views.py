"""Views: the pairs (receiver i, sender j) of an edge set as one block of tensors.

A weight is a function of a view. It sees only `dot`, `receiver`, `sender`, `pairwise`, `pair`, `edge`, `offset` and `tap`, so
dense blocks, stencils and edge lists evaluate the same few lines. Results have shape (B, H, *pairs), where pairs is

    Pairs  (n, m)    every receiver with every sender
    Slots  (n, S)    S senders of each receiver by index: taps of a stencil, neighbours of a node

A sender index equal to m stands for the zero sender beyond a border: q'k = 0 and v = 0, but it counts in a normaliser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from quadform._errors import Refused
from quadform.algebra._layout import Layout, pair_offsets

if TYPE_CHECKING:
    from quadform.algebra._edges import Edges


class View(Protocol):
    """What a weight may ask of the pairs it is evaluated on."""

    @property
    def offset(self) -> Tensor:
        """Position of the sender minus that of the receiver, int64, broadcastable to (Bp, 1, *pairs, grid dims)."""

    @property
    def tap(self) -> Tensor:
        """Tap index of each pair, int64, broadcastable to (*pairs); refused where edges have no taps."""

    @property
    def rank(self) -> int:
        """How many dimensions *pairs has."""

    def by_receiver(self, x: Tensor, index: Tensor) -> Tensor:
        """x_i[index] for x (B, H, n, T) and an index of the pair: (B, H, *pairs)."""

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """a_i'b_j for a (B, H, n, M) and b (B, H, m, M): (B, H, *pairs)."""

    def receiver(self, x: Tensor) -> Tensor:
        """x_i for x (B, H, n): broadcastable to (B, H, *pairs)."""

    def sender(self, x: Tensor) -> Tensor:
        """x_j for x (B, H, m): broadcastable to (B, H, *pairs)."""

    def pairwise(self, function: Callable[..., Tensor], a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
        """function(a_i, b_j, *more) for a function that reduces the last dimension of two (..., M) tensors."""

    def pair(self, x: Tensor) -> Tensor:
        """x_ij for x (B, H, n, m): (B, H, *pairs)."""

    def edge(self, x: Tensor) -> Tensor:
        """x_e for x (B, H, E) given in the order of the Graph's edge_index."""

    def mean(self, x: Tensor) -> Tensor:
        """Mean of x (B, H, *pairs) over the edges of each pair's receiver: broadcastable to (B, H, *pairs)."""

    def member(self, edges: Edges) -> Tensor:
        """Which pairs are edges of another, positional edge set: bool, broadcastable to (B, H, *pairs)."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Every receiver with every sender.

    Attributes:
        count: how often each pair is an edge: bool or int64, broadcastable to (B, H, n, m).
        at: where the receivers and the senders stand.
    """

    count: Tensor
    at: Layout
    rank = 2

    @property
    def offset(self) -> Tensor:
        return pair_offsets(self.at)

    @property
    def tap(self) -> Tensor:
        raise Refused("Taps and Dynamic read a tap index, which only a Stencil gives to its edges")

    def by_receiver(self, x: Tensor, index: Tensor) -> Tensor:
        return _take(x, index)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b.transpose(-1, -2)

    def receiver(self, x: Tensor) -> Tensor:
        return x[..., :, None]

    def sender(self, x: Tensor) -> Tensor:
        return x[..., None, :]

    def pairwise(self, function: Callable[..., Tensor], a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
        return function(a[..., :, None, :], b[..., None, :, :], *more)

    def pair(self, x: Tensor) -> Tensor:
        return x

    def edge(self, x: Tensor) -> Tensor:
        raise Refused("an edge tensor needs Graph edges, alone, to say which edge each entry belongs to")

    def mean(self, x: Tensor) -> Tensor:
        return _row_mean(x, self.count)

    def member(self, edges: Edges) -> Tensor:
        return edges.relation(self.at) > 0

    def combine(self, w: Tensor, v: Tensor) -> Tensor:
        """sum_j w_ij v_j: (B, H, n, m) and (B, H, m, Dv) to (B, H, n, Dv)."""
        return w @ v

    def matrix(self, w: Tensor, keys: int) -> Tensor:
        """The weights as a dense (B, H, n, m) matrix."""
        return w


@dataclass(frozen=True, eq=False)
class Slots:
    """S senders of each receiver by index.

    Attributes:
        index: (Bp, 1, n, S) int64 in [0, m]; m is the zero sender.
        count: (Bp, 1, n, S) bool: the slot is used.
        offset: broadcastable to (Bp, 1, n, S, g).
        at: where the receivers and the senders stand.
        taps: broadcastable to (Bp, 1, n, S), or None.
        edges: (Bp, 1, n, S) index into edge_index, or None.
    """

    index: Tensor
    count: Tensor
    offset: Tensor
    at: Layout
    taps: Tensor | None = None
    edges: Tensor | None = None
    rank = 2

    @property
    def tap(self) -> Tensor:
        if self.taps is None:
            raise Refused("Taps and Dynamic read a tap index, which only a Stencil gives to its edges")
        return self.taps

    def by_receiver(self, x: Tensor, index: Tensor) -> Tensor:
        return _take(x, index)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return self.pair(a @ b.transpose(-1, -2))

    def receiver(self, x: Tensor) -> Tensor:
        return x[..., :, None]

    def sender(self, x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, 1))
        return _take(padded[..., None, :], self.index)

    def pairwise(self, function: Callable[..., Tensor], a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
        b = torch.nn.functional.pad(b, (0, 0, 0, 1))
        index = self.index.expand(b.shape[0], b.shape[1], -1, -1)
        flat = index.flatten(-2)[..., None].expand(*index.shape[:2], -1, b.shape[-1])
        return function(a[..., :, None, :], b.gather(-2, flat).unflatten(-2, index.shape[-2:]), *more)

    def pair(self, x: Tensor) -> Tensor:
        return _take(torch.nn.functional.pad(x, (0, 1)), self.index)

    def edge(self, x: Tensor) -> Tensor:
        if self.edges is None:
            raise Refused("an edge tensor needs Graph edges, alone, to say which edge each entry belongs to")
        return _take(x[..., None, :], self.edges) if x.shape[-1] else x.new_zeros(self.index.shape)

    def mean(self, x: Tensor) -> Tensor:
        return _row_mean(x, self.count)

    def member(self, edges: Edges) -> Tensor:
        relation = torch.nn.functional.pad(edges.relation(self.at).long(), (0, 1))
        return _take(relation, self.index) > 0

    def combine(self, w: Tensor, v: Tensor) -> Tensor:
        return self.matrix(w, v.shape[-2]) @ v

    def matrix(self, w: Tensor, keys: int) -> Tensor:
        shape = torch.broadcast_shapes(w.shape, self.index.shape)
        dense = w.new_zeros(*shape[:-1], keys + 1)
        return dense.scatter_add(-1, self.index.expand(shape), w.expand(shape))[..., :keys]


def _row_mean(x: Tensor, count: Tensor) -> Tensor:
    """Mean of x (B, H, n, m) over the last dimension, weighted by counts; 0 where all are 0."""
    total = (torch.where(count > 0, x, 0) * count).sum(-1, keepdim=True)
    return total / count.sum(-1, keepdim=True).clamp(min=1)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x[..., index] over the last dimension, the others broadcast."""
    lead = torch.broadcast_shapes(x.shape[:-1], index.shape[:-1])
    return x.expand(*lead, x.shape[-1]).gather(-1, index.expand(*lead, index.shape[-1]))
