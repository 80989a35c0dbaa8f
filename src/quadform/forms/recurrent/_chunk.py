"""Where the tokens of one call stand in a stream, row by row of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra import Layout
from quadform.forms._call import Call
from quadform.forms.recurrent._state import State


@dataclass(frozen=True, eq=False)
class Chunk:
    """Positions of the n tokens of a call that continues a stream.

    Attributes:
        position: (B, n) int64. Leading padding of a row that has seen nothing stands before 0.
        valid: (B, n) bool, tokens that exist and are kept.
        exists: (B, n) bool, tokens that advance the position: all but leading and right padding.
        length: (B,) int64, positions seen after the call.
        missing: (B,) int64, tokens of right padding; None where no lengths were given.
    """

    position: Tensor
    valid: Tensor
    exists: Tensor
    length: Tensor
    missing: Tensor | None


def chunk_of(call: Call, state: State | None) -> Chunk:
    """The positions of a call's tokens after `state`.

    `lengths` is right padding: those tokens do not exist. In `key_mask`, False before the first kept token of a row is left
    padding; later it is a hole, which keeps its position.
    """
    at, batch = call.layout, call.v.shape[0]
    n, device = at.keys, at.k_pos.device
    if at.queries != n:
        raise ArgumentError("q", f"{n} queries, one for each new key, where a state is kept", str(at.queries))
    check_batch(state, batch)
    before = torch.zeros(batch, dtype=torch.int64, device=device) if state is None else state.length
    index = torch.arange(n, device=device).expand(batch, n)
    valid = torch.ones(batch, n, dtype=torch.bool, device=device)
    valid = valid if at.k_valid is None else at.k_valid.expand(batch, n)
    given = call.lengths
    count = torch.full_like(before, n) if given is None else given.to(device, torch.int64)
    first = torch.where(valid, index, count[:, None]).amin(-1) if n else torch.zeros_like(before)
    lead = torch.where(before == 0, torch.minimum(first, count), 0)
    position = before[:, None] + index - lead[:, None]
    exists = (index >= lead[:, None]) & (index < count[:, None])
    return Chunk(position, valid & exists, exists, before + count - lead, None if given is None else n - count)


def check_batch(state: State | None, batch: int) -> None:
    """Errors: ArgumentError where the state has another batch size."""
    if state is not None and state.batch != batch:
        raise ArgumentError("state", f"a state of {batch} rows", f"{state.batch} rows")


def chunk_layout(chunk: Chunk, kept: Tensor | None) -> Layout:
    """The layout of the chunk's tokens as receivers, and of `kept` (B, R) older tokens and the chunk as senders."""
    valid = chunk.valid if kept is None else torch.cat([kept, chunk.valid], -1)
    old = valid.shape[-1] - chunk.valid.shape[-1]
    n = chunk.valid.shape[-1]
    first = chunk.position[:, :1] if n else chunk.length[:, None]
    k_pos = first - old + torch.arange(old + n, device=first.device)
    return Layout(chunk.position, k_pos, chunk.length, chunk.length, valid, (old + n,), old, True)
