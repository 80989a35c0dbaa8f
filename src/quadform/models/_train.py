"""A small training loop: steps or seconds, a learning-rate drop, a log of what was measured on held-out data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadform._errors import ArgumentError, QuadformError

IGNORED = -100
"""A target that does not count."""
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Entry:
    """One line of a training log.

    Attributes:
        step: optimiser steps so far.
        seconds: of training so far, evaluation not included.
        loss: mean cross-entropy in nats over the counted targets of the steps since the last entry.
        measured: what `evaluate` gave.
    """

    step: int
    seconds: float
    loss: float
    measured: dict[str, float]


def train(
    model: nn.Module,
    batches: Iterator[Batch],
    *,
    steps: int | None = None,
    seconds: float | None = None,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    every: int = 100,
    rate: float = 1e-3,
    drop_after: int | None = None,
    stop: Callable[[Entry], bool] | None = None,
) -> Iterator[Entry]:
    """Trains with RAdam (Liu et al. 2020) on cross-entropy, gradients clipped to norm 1, and yields an entry now and then.

    Args:
        model: tokens (B, N) -> logits (B, N, vocabulary).
        batches: (inputs, targets) of (B, N) tokens each; targets of -100 do not count.
        steps, seconds: when to end; at least one of them.
        evaluate: held-out measures by name, with the model in evaluation mode and without gradients.
        every: steps between two entries.
        rate: the learning rate, divided by 10 after `drop_after` steps.
        stop: ends training after an entry that it is true of.

    Raises:
        QuadformError: the loss is not finite.
    """
    if steps is None and seconds is None:
        raise ArgumentError("steps", "a number of steps, or seconds", "neither")
    optimiser = torch.optim.RAdam(model.parameters(), lr=rate)
    spent, losses, step = 0.0, 0.0, 0
    while (steps is None or step < steps) and (seconds is None or spent < seconds):
        start = time.perf_counter()
        if step == drop_after:
            for group in optimiser.param_groups:
                group["lr"] = rate / 10
        model.train()
        inputs, targets = next(batches)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses += float(loss.detach())
        if losses != losses or losses == float("inf"):
            raise QuadformError(f"the loss is not finite at step {step}")
        step += 1
        spent += time.perf_counter() - start
        ended = step == steps or (seconds is not None and spent >= seconds)
        if step % every == 0 or ended:
            entry = Entry(step, spent, losses / (step % every or every), _measured(model, evaluate))
            losses = 0.0
            yield entry
            if stop is not None and stop(entry):
                return


def _measured(model: nn.Module, evaluate: Callable[[nn.Module], dict[str, float]] | None) -> dict[str, float]:
    if evaluate is None:
        return {}
    model.eval()
    with torch.no_grad():
        return evaluate(model)
