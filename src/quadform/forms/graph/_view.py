"""The view of an edge list: *pairs is (E,), so a weight written for pairs is evaluated edge by edge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from quadform._errors import Refused
from quadform.algebra import EdgeList, Edges, Layout
from quadform.forms.graph._products import CHUNK, Structure, sddmm, spmm, structure_of


@dataclass(frozen=True, eq=False)
class EdgeView:
    """Implements `View` on the edges of a list; the zero sender is one more row of zeros behind the senders."""

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
        return x[:, :, self.edges.receiver, index[0, 0]]

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return sddmm(self.structure, a, F.pad(b, (0, 0, 0, 1)))

    def receiver(self, x: Tensor) -> Tensor:
        return x.index_select(2, self.edges.receiver)

    def sender(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1)).index_select(2, self.edges.sender)

    def pairwise(self, function: Callable[..., Tensor], a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
        b = F.pad(b, (0, 0, 0, 1))
        count = self.edges.receiver.numel()
        size = max(CHUNK // max(a.shape[0] * a.shape[1] * a.shape[-1], 1), 1)

        def part(chunk: slice, a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
            picked = a.index_select(2, self.edges.receiver[chunk]), b.index_select(2, self.edges.sender[chunk])
            return function(*picked, *more)

        slices = [slice(first, min(first + size, count)) for first in range(0, max(count, 1), size)]
        return torch.cat([checkpoint(part, c, a, b, *more, use_reentrant=False) for c in slices], -1)

    def pair(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1))[:, :, self.edges.receiver, self.edges.sender]

    def edge(self, x: Tensor) -> Tensor:
        if self.edges.edge is None:
            raise Refused("an edge tensor needs Graph edges, alone, to say which edge each entry belongs to")
        return x.index_select(2, self.edges.edge)

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
        return spmm(self.structure, w.expand(v.shape[0], v.shape[1], -1), F.pad(v, (0, 0, 0, 1)))

    def sum(self, x: Tensor) -> Tensor:
        """Sums over the edges into each receiver: (B, H, E) to (B, H, n)."""
        return x.new_zeros(*x.shape[:2], self.edges.queries).index_add(2, self.edges.receiver, x)

    def largest(self, x: Tensor) -> Tensor:
        """The largest value over the edges into each receiver, -inf where there is none; no gradient."""
        low = x.new_full((*x.shape[:2], self.edges.queries), -torch.inf)
        index = self.edges.receiver.expand_as(x)
        return low.scatter_reduce(2, index, x.detach(), "amax", include_self=True)


def edge_weights(log: bool, normalised: bool, scores: Tensor, view: EdgeView) -> Tensor:
    """w_e (B, H, E): softmax over the edges into each receiver, or scores over their sum, or the scores; counts multiply.

    A receiver without edges, or whose sum is 0, has weights 0 with gradient 0.
    """
    scores = scores.expand(*scores.shape[:2], view.edges.receiver.numel())
    w = scores
    if log:
        top = view.largest(scores)
        w = torch.exp(scores - view.receiver(torch.where(top == -torch.inf, 0, top)))
    if view.edges.count is not None:
        w = w * view.edges.count
    if not (log or normalised):
        return w
    total = view.receiver(view.sum(w))
    zero = total == 0
    return torch.where(zero, 0, w / torch.where(zero, 1, total))
