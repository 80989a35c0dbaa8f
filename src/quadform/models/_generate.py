"""Sampling from a model that streams."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from quadform._errors import ArgumentError


class Streams(Protocol):
    """A model of the next token that can be run as a recurrent network."""

    def init_state(self, batch: int) -> Any:
        """The state before the first token."""

    def stream(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """(logits (B, n, vocabulary), state) of the next n tokens (B, n); the state given is left as it was."""


def generate(model: Streams, tokens: Tensor, length: int, *, generator: torch.Generator | None = None) -> Tensor:
    """(B, length): `tokens` continued by sampling; by the likeliest token without a generator.

    The prompt (B, n) is read at once and holds at least one token and at most `length`.
    """
    if not 1 <= tokens.shape[1] <= length:
        raise ArgumentError("tokens", f"a prompt of 1 to {length} tokens", tuple(tokens.shape))
    found = [tokens]
    with torch.inference_mode():
        state, new = model.init_state(len(tokens)), tokens
        for _ in range(length - tokens.shape[1]):
            logits, state = model.stream(new, state)
            new = _choose(logits[:, -1].float(), generator)
            found.append(new)
    return torch.cat(found, 1)


def _choose(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)
