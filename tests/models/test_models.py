"""The reference models: streamed as read at once, trained, and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quadform import ArgumentError, QuadformError
from quadform.models import IGNORED, Decoder, LSTMDecoder, generate, train


class Sum(nn.Module):
    """The mean of the tokens so far: the simplest causal attention that streams."""

    def init_state(self, batch: int) -> tuple[int, Tensor | float]:
        return 0, 0.0

    def forward(self, x: Tensor, state=None, return_state: bool = False):
        count, total = (0, 0.0) if state is None else state
        sums = x.cumsum(1) + total
        y = sums / torch.arange(count + 1, count + x.shape[1] + 1)[:, None]
        return (y, (count + x.shape[1], sums[:, -1:])) if return_state else y


def models() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"lstm": LSTMDecoder(7, 12, 2), "decoder": Decoder(7, 12, 2, 20, Sum)}


@pytest.mark.parametrize("name", ["lstm", "decoder"])
@pytest.mark.parametrize("split", [(1, 4), (3, 1, 1), (1, 1, 1, 1, 1), (5,)])
@torch.no_grad()
def test_a_stream_gives_what_the_whole_sequence_does(name: str, split: tuple[int, ...]):
    model = models()[name].double()
    tokens = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(1))
    state, parts = model.init_state(2), []
    for part in tokens.split(split, 1):
        before = state
        logits, state = model.stream(part, state)
        again, _ = model.stream(part, before)  # a step leaves the state it was given as it was
        assert torch.equal(logits, again)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["lstm", "decoder"])
def test_greedy_generation_is_the_likeliest_token_of_the_whole_prefix(name: str):
    model = models()[name]
    tokens = torch.tensor([[1, 2], [3, 4]])
    found = generate(model, tokens, 9)
    assert found.shape == (2, 9) and torch.equal(found[:, :2], tokens)
    for at in range(2, 9):
        with torch.no_grad():
            assert torch.equal(found[:, at], model(found[:, :at])[:, -1].argmax(-1))
    one, two = (generate(model, tokens, 9, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, found)


def batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        tokens = torch.randint(7, (16, 6), generator=generator)
        yield tokens, tokens


def test_training_lowers_the_loss_and_logs_it():
    model = models()["decoder"]
    entries = list(train(model, batches(), steps=250, every=100, evaluate=lambda model: {"training": model.training}))
    assert [entry.step for entry in entries] == [100, 200, 250]
    assert entries[-1].loss < entries[0].loss < 2.0
    assert not any(entry.measured["training"] for entry in entries)
    assert entries[0].seconds < entries[-1].seconds


def test_training_stops_when_it_is_told_to():
    entries = list(train(models()["lstm"], batches(), steps=90, every=20, stop=lambda entry: entry.step >= 40))
    assert [entry.step for entry in entries] == [20, 40]


def test_targets_that_do_not_count():
    tokens = torch.zeros(1, 4, dtype=torch.long)
    none = torch.full((1, 4), IGNORED)
    none[0, 1] = 3
    *_, entry = train(models()["lstm"], itertools.repeat((tokens, none)), steps=200, every=100, rate=1e-2)
    assert entry.loss < 0.1


def test_a_loss_that_is_not_finite():
    model = models()["lstm"]
    model.head.weight.data[0, 0] = torch.nan
    with pytest.raises(QuadformError, match="the loss is not finite at step 0"):
        next(train(model, batches(), steps=3))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Decoder(7, 12, 0, 20, Sum), "vocabulary, width, depth, length: expected numbers of at least 1"),
        (lambda: LSTMDecoder(0, 12, 1), "vocabulary, width, depth: expected numbers of at least 1"),
        (lambda: models()["decoder"](torch.zeros(1, 21, dtype=torch.long)), "tokens: expected at most 20"),
        (
            lambda: generate(models()["lstm"], torch.zeros(1, 0, dtype=torch.long), 4),
            "tokens: expected a prompt of 1 to 4",
        ),
        (
            lambda: next(train(models()["lstm"], batches())),
            "steps: expected a number of steps, or seconds, got neither",
        ),
    ],
)
def test_bad_arguments(call, message: str):
    with pytest.raises(ArgumentError, match=message):
        call()
