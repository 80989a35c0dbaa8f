"""Log-gates within chunks: every weight is the exponential of a difference that is at most 0, so nothing overflows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BASE = 4  # pairs within so many tokens are weighed one by one where each feature has a gate of its own


class Decay:
    """The decay of chunks of tokens, from log-gates (X, C, 1 or m), each applied by its token to all that came before it.

    With b the running sum of a chunk's log-gates, sender j counts exp(b_i - b_j) at receiver i; what came before the chunk
    counts exp(b_i) there, and at the chunk's end exp(b_C), sender j exp(b_C - b_j).

    Attributes:
        start: (X, C, 1 or m) exp(b_i). end: (X, C, 1 or m) exp(b_C - b_j). fade: (X, 1 or m, 1) exp(b_C).
    """

    def __init__(self, gates: Tensor, dtype: torch.dtype) -> None:
        self.sums, self.dtype = gates.cumsum(-2), dtype
        last = self.sums[:, -1:]
        self.start, self.end, self.fade = self._exp(self.sums), self._exp(last - self.sums), self._exp(last).mT
        self.scalar = gates.shape[-1] == 1
        self.gap = self._gap(self.sums)[..., 0] if self.scalar else None
        if not self.scalar:
            size = BASE
            while size < gates.shape[1]:
                size *= 2
            self.sums = torch.cat([self.sums, last.expand(-1, size - gates.shape[1], -1)], 1)
            self.halves = [BASE << n for n in range((size // BASE).bit_length() - 1)]
            self.near = self._gap(_blocks(self.sums))

    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        """(X, C, C): sum over features of q_i k_j exp(b_i - b_j) for j <= i, else 0.

        Gates for each feature: a chunk is halved again and again. Receivers of a second half meet senders of the first as
        one matrix product, of q exp(b_i - b_r) and k exp(b_r - b_j), where r is the end of the first half.
        """
        if self.gap is not None:
            return torch.bmm(q, k.mT).mul_(self.gap)
        size = q.shape[1]
        q, k = self._padded(q), self._padded(k)
        w = q.new_zeros(q.shape[0], q.shape[1], q.shape[1])
        for half in self.halves:
            late, early = self._ends(half)
            _corners(w, half).copy_((_second(q, half) * late) @ (_first(k, half) * early).mT)
        qb, kb = _blocks(q), _blocks(k)
        _diagonal(w).copy_(((qb[:, :, :, None] * self.near).mul_(kb[:, :, None])).sum(-1))
        return w[:, :size, :size]

    def backward(self, grad: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of q and k from grad (X, C, C), 0 above the diagonal, of what `weigh` gave."""
        if self.gap is not None:
            grad = grad * self.gap
            return torch.bmm(grad, k), torch.bmm(grad.mT, q)
        size = q.shape[1]
        q, k, grad = self._padded(q), self._padded(k), self._padded(self._padded(grad).mT).mT
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        for half in self.halves:
            late, early = self._ends(half)
            g = _corners(grad, half)
            _second(dq, half).addcmul_(g @ (_first(k, half) * early), late)
            _first(dk, half).addcmul_(g.mT @ (_second(q, half) * late), early)
        g = _diagonal(grad)[..., None] * self.near
        _blocks(dq).add_((g * _blocks(k)[:, :, None]).sum(3))
        _blocks(dk).add_((g * _blocks(q)[:, :, :, None]).sum(2))
        return dq[:, :size], dk[:, :size]

    def _exp(self, gates: Tensor) -> Tensor:
        return gates.to(self.dtype).exp()

    def _gap(self, sums: Tensor) -> Tensor:
        """(..., c, c, 1 or m): exp(b_i - b_j) for j <= i, else 0."""
        future = torch.ones(sums.shape[-2], sums.shape[-2], dtype=torch.bool, device=sums.device).triu(1)
        gap = (sums[..., :, None, :] - sums[..., None, :, :]).to(self.dtype)
        return gap.masked_fill_(future[..., None], -torch.inf).exp_()

    def _ends(self, half: int) -> tuple[Tensor, Tensor]:
        late, early = _second(self.sums, half), _first(self.sums, half)
        middle = early[:, :, -1:]
        return self._exp(late - middle), self._exp(middle - early)

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, self.sums.shape[1] - x.shape[1]))


def _first(x: Tensor, half: int) -> Tensor:
    """(X, pairs, half, d): the first halves of blocks of 2 half tokens."""
    return x.unflatten(1, (-1, 2, half))[:, :, 0]


def _second(x: Tensor, half: int) -> Tensor:
    return x.unflatten(1, (-1, 2, half))[:, :, 1]


def _blocks(x: Tensor) -> Tensor:
    return x.unflatten(1, (-1, BASE))


def _corners(w: Tensor, half: int) -> Tensor:
    """(X, pairs, half, half): the entries of w (X, C, C) from first halves to second halves, as a view."""
    w = w.unflatten(2, (-1, 2, half)).unflatten(1, (-1, 2, half))
    return w[:, :, 1, :, :, 0].diagonal(dim1=1, dim2=3).movedim(-1, 1)


def _diagonal(w: Tensor) -> Tensor:
    """(X, C / BASE, BASE, BASE): the blocks on the diagonal, as a view."""
    return w.unflatten(2, (-1, BASE)).unflatten(1, (-1, BASE)).diagonal(dim1=1, dim2=3).movedim(-1, 1)
