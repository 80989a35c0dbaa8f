"""Edges that depend on q and k: hash buckets and the k highest scores. `resolve` turns them into fixed edges, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quadform._errors import Refused
from quadform.algebra._description import Checks, description
from quadform.algebra._edges import Edges
from quadform.algebra._layout import Layout
from quadform.algebra._sequence_edges import All

if TYPE_CHECKING:
    from quadform.algebra._operands import Operands
    from quadform.algebra._weights import Weights


@description
@dataclass(frozen=True)
class Buckets(Edges):
    """Locality-sensitive hashing: j in E(i) if q_i and k_j share a bucket in at least one round; each pair counts once.

        bucket_r(x) = argmax([x R_r, -x R_r]),    rotations R (H or 1, n_hashes, D, n_buckets / 2)

    The call passes `rotations` (not needed for one bucket). No chunks: the union of same-bucket pairs, exactly.
    Source: Kitaev et al. 2020, "Reformer: the efficient Transformer".

    Errors: ArgumentError for an odd n_buckets above 1.

    Reference:

        mask = (bucket(q)[..., :, None, :] == bucket(k)[..., None, :, :]).any(-1)
    """

    n_hashes: int
    n_buckets: int

    def __post_init__(self) -> None:
        Checks.integer(self, "n_hashes", 1)
        Checks.integer(self, "n_buckets", 1)
        Checks.number(self, "n_buckets", lambda n: n == 1 or n % 2 == 0, "1, or an even count (a rotation gives pairs)")

    @property
    def positional(self) -> bool:
        return False

    @property
    def content(self) -> bool:
        return True

    @torch.no_grad()
    def resolve(self, operands: Operands, weights: Weights, within: Edges | None = None) -> Edges:
        q, k = operands.require("q"), operands.require("k")
        rotations = None if self.n_buckets == 1 else operands.named("rotations")
        return SameBucket(self.hash(q, rotations), self.hash(k, rotations))

    def hash(self, x: Tensor, rotations: Tensor | None) -> Tensor:
        """(B, H, n, n_hashes) int64 bucket of each vector in each round."""
        if rotations is None:
            return torch.zeros(*x.shape[:-1], self.n_hashes, dtype=torch.int64, device=x.device)
        turned = torch.einsum("bhnd,hrdk->bhnrk", x, rotations.to(x.dtype).expand(x.shape[1], -1, -1, -1))
        return torch.cat([turned, -turned], -1).argmax(-1)


@dataclass(frozen=True, eq=False)
class SameBucket(Edges):
    """Resolved Buckets: bucket numbers (B, H, n, R) of the queries and (B, H, m, R) of the keys."""

    q_bucket: Tensor
    k_bucket: Tensor

    @property
    def positional(self) -> bool:
        return False

    @property
    def by_index(self) -> bool:
        return True

    def relation(self, at: Layout) -> Tensor:
        first, left = at.origin
        q = self.q_bucket[:, :, first : first + at.queries]
        k = self.k_bucket[:, :, left : left + at.keys]
        same = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=torch.bool, device=q.device)
        for r in range(q.shape[-1]):
            same |= q[..., :, None, r] == k[..., None, :, r]
        return same


@description
@dataclass(frozen=True)
class TopK(Edges):
    """The k senders with the highest scores of each receiver (among the edges beside it in `&`).

    The choice carries no gradient; of equal scores the earlier sender is taken. With k >= the number of senders it is All.

    Reference:

        keep = scores.masked_fill(~mask, -inf).topk(k).indices
    """

    k: int

    def __post_init__(self) -> None:
        Checks.integer(self, "k", 1)

    @property
    def positional(self) -> bool:
        return False

    @property
    def content(self) -> bool:
        return True

    @property
    def ranks(self) -> bool:
        """It picks among other edges, so those are resolved first."""
        return True

    @torch.no_grad()
    def resolve(self, operands: Operands, weights: Weights, within: Edges | None = None) -> Edges:
        view = (within or All()).view(operands.layout)
        scores = weights.scores(view, weights.prepare(operands))
        if scores is None:
            raise Refused(f"TopK ranks senders by score, and {weights} has none")
        n, m = operands.layout.queries, operands.layout.keys
        present = (view.count > 0).expand(operands.batch, operands.heads, n, m)
        scores = scores.expand(present.shape).masked_fill(~present, -torch.inf)
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., : min(self.k, m)]
        return Chosen(best, present.gather(-1, best))


@dataclass(frozen=True, eq=False)
class Chosen(Edges):
    """Resolved TopK: sender indices (B, H, n, k), and which of them are edges."""

    index: Tensor
    present: Tensor

    @property
    def positional(self) -> bool:
        return False

    @property
    def by_index(self) -> bool:
        return True

    def relation(self, at: Layout) -> Tensor:
        first, left = at.origin
        index, present = self.index[:, :, first : first + at.queries], self.present[:, :, first : first + at.queries]
        dense = torch.zeros(*index.shape[:-1], left + at.keys + 1, dtype=torch.bool, device=index.device)
        dense.scatter_(-1, torch.where(present, index, left + at.keys).clamp(max=left + at.keys), present)
        return dense[..., left:-1]
