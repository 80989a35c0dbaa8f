"""A Transformer of the next token whose attention is whatever it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quadform._errors import ArgumentError


@dataclass(frozen=True)
class DecoderState:
    """What a stream of a `Decoder` keeps: the number of tokens read, and a state for each layer."""

    tokens: int
    layers: tuple[Any, ...]


class Decoder(nn.Module):
    """Next-token logits (B, N, vocabulary) of tokens (B, N): embedding and learned positions, then `depth` blocks

        x = x + attention(norm(x)),  x = x + W_2 gelu(W_1 norm(x)),

    and a linear map of norm(x).

    Args:
        vocabulary: number of tokens.
        width: of the embedding; the feed-forward layer is four times as wide.
        depth: number of blocks.
        length: most tokens of a sequence.
        attention: makes the causal attention of one block, (B, N, width) -> (B, N, width). To stream, it needs
            `init_state(batch)` and `attention(x, state=state, return_state=True) -> (y, state)`, as quadform's layers have.
    """

    def __init__(
        self, vocabulary: int, width: int, depth: int, length: int, attention: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        if min(vocabulary, width, depth, length) < 1:
            raise ArgumentError(
                "vocabulary, width, depth, length", "numbers of at least 1", (vocabulary, width, depth, length)
            )
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.blocks = nn.ModuleList(_Block(width, attention()) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N) tokens -> (B, N, vocabulary)."""
        x = self._embed(tokens, 0)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def init_state(self, batch: int) -> DecoderState:
        """The state before the first token."""
        return DecoderState(0, tuple(block.attention.init_state(batch) for block in self._all()))

    def stream(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """(logits (B, n, vocabulary), state) of the next n tokens; the state given is left as it was."""
        x, states = self._embed(tokens, state.tokens), []
        for block, own in zip(self._all(), state.layers, strict=True):
            x, new = block.stream(x, own)
            states.append(new)
        return self.head(self.norm(x)), DecoderState(state.tokens + tokens.shape[1], tuple(states))

    def _all(self) -> list[_Block]:
        return [block for block in self.blocks if isinstance(block, _Block)]

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        last, longest = first + tokens.shape[1], self.positions.num_embeddings
        if last > longest:
            raise ArgumentError("tokens", f"at most {longest} of a sequence", last)
        return self.embedding(tokens) + self.positions(torch.arange(first, last, device=tokens.device))


class _Block(nn.Module):
    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.attention: Any = attention
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.feed_forward(self.between(x))

    def stream(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.attention(self.before(x), state=state, return_state=True)
        x = x + y
        return x + self.feed_forward(self.between(x)), state
