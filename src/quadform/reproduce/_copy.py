"""The copy task: repeat a sequence of symbols after a separator (Katharopoulos et al. 2020, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from quadform.models import IGNORED

SYMBOLS = 10
SEPARATOR = SYMBOLS
VOCABULARY = SYMBOLS + 1


def batches(batch: int, symbols: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets), each (B, 2 symbols + 1): separator, s_1 .. s_n, separator, s_1 .. s_n.

    n is between half of `symbols` and all of them; only the copy counts, and what follows it is padded with separators.
    """
    generator = torch.Generator().manual_seed(seed)
    while True:
        words = torch.randint(SYMBOLS, (batch, symbols), generator=generator)
        counts = torch.randint((symbols + 1) // 2, symbols + 1, (batch, 1), generator=generator)
        yield _sequences(words, counts)


def _sequences(words: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    symbols = words.shape[1]
    at = torch.arange(2 * symbols + 2)
    copied = at - counts - 2  # which symbol of the copy stands here
    source = torch.where(at <= counts, at - 1, copied).clamp(0, symbols - 1)
    tokens = words.gather(1, source)
    separators = (at == 0) | (at == counts + 1) | (copied >= counts)
    tokens = tokens.masked_fill(separators, SEPARATOR)
    counted = (copied >= 0) & (copied < counts)
    targets = tokens.masked_fill(~counted, IGNORED)
    return tokens[:, :-1].contiguous(), targets[:, 1:].contiguous()


def accuracy(model: nn.Module, held_out: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """{"accuracy": share of the copied tokens that are the likeliest ones, "sequences": share of copies without an error}."""
    right, counted, whole, copies = 0, 0, 0, 0
    for inputs, targets in held_out:
        valid = targets != IGNORED
        hits = (model(inputs).argmax(-1) == targets) & valid
        right, counted = right + int(hits.sum()), counted + int(valid.sum())
        whole, copies = whole + int((hits == valid).all(-1).sum()), copies + len(targets)
    return {"accuracy": right / max(1, counted), "sequences": whole / max(1, copies)}
