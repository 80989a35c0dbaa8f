"""The view of an edge list: *pairs is (E,), so a weight written for pairs is evaluated edge by edge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform._errors import Refused
from quadform.algebra import EdgeList, Edges, Layout
from quadform.forms.graph._pairwise import pairwise
from quadform.forms.graph._products import Structure, sddmm, spmm, structure_of


@dataclass(frozen=True, eq=False)
class EdgeView:
    """Implements `View` on the edges of a list; a zero sender to which edges lead is one more row of zeros."""

    edges: EdgeList
    at: Layout
    rank = 1

    @property
    def structure(self) -> Structure:
        return structure_of(self.edges)

    @property
    def offset(self) -> Tensor:
        return self.edges.offset[None, None]

    @property
    def tap(self) -> Tensor:
        if self.edges.tap is None:
            raise Refused("Taps and Dynamic read a tap index, which only a Stencil gives to its edges")
        return self.edges.tap[None, None]

    def by_receiver(self, x: Tensor, index: Tensor) -> Tensor:
        return _take(x.flatten(2), self.edges.receiver * x.shape[3] + index[0, 0])

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return sddmm(self.structure, a, self._senders(b))

    def receiver(self, x: Tensor) -> Tensor:
        return _take(x, self.edges.receiver)

    def sender(self, x: Tensor) -> Tensor:
        return _take(self._senders(x[..., None])[..., 0], self.edges.sender)

    def pairwise(self, function: Callable[..., Tensor], a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
        return pairwise(function, self.structure, a, self._senders(b), *more)

    def pair(self, x: Tensor) -> Tensor:
        x = self._senders(x.transpose(2, 3)).transpose(2, 3)
        return _take(x.flatten(2), self.edges.receiver * x.shape[3] + self.edges.sender)

    def edge(self, x: Tensor) -> Tensor:
        if self.edges.edge is None:
            raise Refused("an edge tensor needs Graph edges, alone, to say which edge each entry belongs to")
        return _take(x, self.edges.edge)

    def mean(self, x: Tensor) -> Tensor:
        count = self.edges.count
        degree = self.sum(torch.ones_like(x[:1, :1]) if count is None else count.to(x.dtype)[None, None])
        return self.receiver(self.sum(x if count is None else x * count) / degree.clamp(min=1))

    def member(self, edges: Edges) -> Tensor:
        """Each edge asked as a batch row of one receiver and one sender."""
        count = self.edges.receiver.numel()
        q_pos = self.at.q_pos[0][self.edges.receiver][:, None]
        k_pos = F.pad(self.at.k_pos[0], (0, 1), value=-1)[self.edges.sender][:, None]
        lone = dataclasses.replace(
            self.at,
            q_pos=q_pos,
            k_pos=k_pos,
            q_len=self.at.q_len[:1].expand(count),
            k_len=self.at.k_len[:1].expand(count),
            k_valid=None,
            q_valid=None,
            shift=None,
        )
        return (edges.relation(lone) > 0).expand(count, 1, 1, 1).reshape(1, 1, count)

    def combine(self, w: Tensor, v: Tensor) -> Tensor:
        """sum over edges of w_e v_j: (B, H, E) and (B, H, m, Dv) to (B, H, n, Dv)."""
        return spmm(self.structure, w.expand(v.shape[0], v.shape[1], -1), self._senders(v))

    def _senders(self, x: Tensor) -> Tensor:
        """x (B, H, m, ...) with a row for the zero sender where the edges name it."""
        more = self.structure.keys - self.edges.keys
        return F.pad(x, (0, 0, 0, more)) if more else x

    def sum(self, x: Tensor) -> Tensor:
        """Sums over the edges into each receiver: (B, H, E) to (B, H, n)."""
        zero = x.new_zeros(*x.shape[:2], self.edges.queries)
        return zero.scatter_add(2, self.edges.receiver.expand_as(x), x)

    def largest(self, x: Tensor) -> Tensor:
        """The largest value over the edges into each receiver, -inf where there is none; no gradient."""
        low = x.new_full((*x.shape[:2], self.edges.queries), -torch.inf)
        return low.scatter_reduce(2, self.edges.receiver.expand_as(x), x.detach(), "amax", include_self=True)


def edge_weights(log: bool, normalised: bool, scores: Tensor, view: EdgeView) -> Tensor:
    """w_e (B, H, E): softmax over the edges into each receiver, or scores over their sum, or the scores; counts multiply.

    Log-weights use the receiver's own maximum. A receiver whose sum is 0 divides by infinity: weights and gradient are 0.
    """
    w = scores.expand(*scores.shape[:2], view.edges.receiver.numel())
    if log:
        top = view.largest(w)
        w = torch.exp(w - view.receiver(torch.where(top == -torch.inf, 0, top)))
    if view.edges.count is not None:
        w = w * view.edges.count
    if not (log or normalised):
        return w
    total = view.sum(w)
    return w / view.receiver(torch.where(total == 0, torch.inf, total))


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x[..., index] for an index (E,), several times as fast as `index_select` on a last dimension."""
    return x.gather(-1, index.expand(*x.shape[:-1], -1))
