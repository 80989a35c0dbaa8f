"""The LSTM that attention is measured against."""

from __future__ import annotations

from torch import Tensor, nn

from quadform._errors import ArgumentError

LSTMState = tuple[Tensor, Tensor]


class LSTMDecoder(nn.Module):
    """Next-token logits (B, N, vocabulary) of tokens (B, N), by an LSTM of `depth` layers (Hochreiter, Schmidhuber 1997).

    Args:
        vocabulary: number of tokens.
        width: of the embedding and of the hidden state.
        depth: number of layers.
    """

    def __init__(self, vocabulary: int, width: int, depth: int) -> None:
        super().__init__()
        if min(vocabulary, width, depth) < 1:
            raise ArgumentError("vocabulary, width, depth", "numbers of at least 1", (vocabulary, width, depth))
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N) tokens -> (B, N, vocabulary)."""
        return self.head(self.layers(self.embedding(tokens))[0])

    def init_state(self, batch: int) -> LSTMState:
        """The state before the first token."""
        weight = self.head.weight
        shape = self.layers.num_layers, batch, self.layers.hidden_size
        return weight.new_zeros(shape), weight.new_zeros(shape)

    def stream(self, tokens: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """(logits (B, n, vocabulary), state) of the next n tokens; the state given is left as it was."""
        hidden, state = self.layers(self.embedding(tokens), state)
        return self.head(hidden), state
