"""The experiments of "Transformers are RNNs" (Katharopoulos et al. 2020) at the size of a small machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quadform.algebra import Causal, Kernel, Softmax, Weights
from quadform.layers import Attention
from quadform.models import Decoder, Entry, LSTMDecoder, Streams, generate, train
from quadform.reproduce import _copy, _digits

KINDS = ("softmax", "linear", "lstm")
WEIGHTS: dict[str, Weights] = {"softmax": Softmax(), "linear": Kernel("elu1")}
TARGET = 0.99
POSITIONS = 8
"""At how many lengths the forward pass of a whole prefix is timed."""
Log = Callable[[str, Entry], None]


@dataclass(frozen=True)
class Settings:
    """Sizes of both experiments.

    Attributes:
        symbols: of the longest sequence to copy.
        copy_width, copy_depth: of the models that copy.
        copy_steps: at most; a model that copies 99.5 % of the tokens stops.
        halve: digits of 14 x 14 pixels.
        width, depth: of the models that draw.
        seconds: of training for each model that draws.
        batch: images in a training step.
        heads: of every Transformer.
        samples: images drawn from each model.
    """

    symbols: int
    copy_width: int
    copy_depth: int
    copy_steps: int
    halve: bool
    width: int
    depth: int
    seconds: float
    batch: int
    heads: int = 4
    samples: int = 16


QUICK = Settings(15, 64, 2, 2000, True, 64, 2, 60.0, 16)
FULL = Settings(63, 128, 4, 10_000, False, 128, 4, 1800.0, 8)


def build(kind: str, vocabulary: int, width: int, depth: int, length: int, heads: int) -> nn.Module:
    """A model of the next token: "softmax" or "linear" attention, or "lstm"."""
    if kind == "lstm":
        return LSTMDecoder(vocabulary, width, depth)
    weights = WEIGHTS[kind]
    return Decoder(vocabulary, width, depth, length, lambda: Attention(width, heads, Causal(), weights))


def copy_task(settings: Settings, seed: int, log: Log) -> dict[str, Any]:
    """For each kind: the training log, its best accuracy, and the steps until 99 % of the copied tokens were right."""
    held_out = [next(_copy.batches(256, settings.symbols, seed + 10_000))]
    found = {}
    for kind in KINDS:
        torch.manual_seed(seed)
        size = settings.copy_width, settings.copy_depth
        model = build(kind, _copy.VOCABULARY, *size, 2 * settings.symbols + 1, settings.heads)
        entries = []
        for entry in train(
            model,
            _copy.batches(32, settings.symbols, seed),
            steps=settings.copy_steps,
            evaluate=lambda model: _copy.accuracy(model, held_out),
            drop_after=settings.copy_steps // 2,
            stop=lambda entry: entry.measured["accuracy"] >= 0.995,
        ):
            entries.append(entry)
            log(f"copy, {kind}", entry)
        reached = next((entry for entry in entries if entry.measured["accuracy"] >= TARGET), None)
        found[kind] = {
            "parameters": _parameters(model),
            "best_accuracy": max(entry.measured["accuracy"] for entry in entries),
            "steps_to_target": reached.step if reached else None,
            "seconds_to_target": reached.seconds if reached else None,
            "log": [asdict(entry) for entry in entries],
        }
    return found


def draw_digits(settings: Settings, seed: int, log: Log) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(by kind: bits per pixel on held-out digits and images a second; by kind: images drawn from the model)."""
    digits = _digits.load_digits(halve=settings.halve)
    side = digits.train.shape[-1]
    pixels = side * side
    found: dict[str, Any] = {"marginal_bits": _digits.marginal_bits(digits), "pixels": pixels, "models": {}}
    pictures = {"real": digits.held_out[: settings.samples]}
    few = digits.held_out[:50]
    for kind in KINDS:
        torch.manual_seed(seed)
        model = build(kind, _digits.VOCABULARY, settings.width, settings.depth, pixels, settings.heads)
        entries = []
        for entry in train(
            model,
            _digits.batches(digits.train, settings.batch, seed),
            seconds=settings.seconds,
            evaluate=lambda model: _digits.bits_per_pixel(model, few),
        ):
            entries.append(entry)
            log(f"digits, {kind}", entry)
        model.eval()
        with torch.inference_mode():
            bits = _digits.bits_per_pixel(model, digits.held_out)["bits"]
        speeds = {"streamed": _streamed(model, pixels)}
        if kind == "softmax":
            speeds["recomputed"] = _recomputed(model, pixels)
        pictures[kind] = _samples(model, settings.samples, side, seed)
        found["models"][kind] = {
            "parameters": _parameters(model),
            "bits": bits,
            "steps": entries[-1].step,
            "images_per_second": speeds,
            "log": [asdict(entry) for entry in entries],
        }
    return found, pictures


def _samples(model: Any, count: int, side: int, seed: int) -> Tensor:
    """(count, side, side): what the model draws; levels alone, never the start token."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.full((count, 1), _digits.START)
    drawn = generate(_LevelsOnly(model), start, side * side + 1, generator=generator)
    return drawn[:, 1:].view(count, side, side)


class _LevelsOnly:
    """A model that never gives the start token."""

    def __init__(self, model: Streams) -> None:
        self._model = model

    def init_state(self, batch: int) -> Any:
        return self._model.init_state(batch)

    def stream(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self._model.stream(tokens, state)
        return logits[..., : _digits.LEVELS], state


def _streamed(model: Any, pixels: int) -> float:
    """Images a second, one image drawn pixel by pixel with the model's state: sums, a cache of keys, or the LSTM's."""
    start = time.perf_counter()
    generate(model, torch.full((1, 1), _digits.START), pixels, generator=torch.Generator().manual_seed(0))
    return 1.0 / (time.perf_counter() - start)


def _recomputed(model: nn.Module, pixels: int) -> float:
    """Images a second if every pixel ran the model on the whole prefix, by the mean time of eight prefixes."""
    lengths = [max(1, pixels * (2 * at + 1) // (2 * POSITIONS)) for at in range(POSITIONS)]
    with torch.inference_mode():
        model(torch.zeros(1, 1, dtype=torch.long))
        start = time.perf_counter()
        for length in lengths:
            model(torch.zeros(1, length, dtype=torch.long))
    return POSITIONS / (time.perf_counter() - start) / pixels


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
