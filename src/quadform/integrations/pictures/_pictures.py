"""Curves and images as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from quadform._errors import ArgumentError


def save_grey(path: Path, levels: Tensor, scale: int = 1) -> None:
    """Writes (height, width) levels from 0 (black) to 255 (white), each pixel `scale` x `scale` large."""
    try:
        from PIL import Image
    except ImportError:
        raise ArgumentError("path", "Pillow to be installed (pip install 'quadform[images]')", str(path)) from None
    large = levels.to(torch.uint8).repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    height, width = large.shape
    Image.frombytes("L", (width, height), bytes(large.contiguous().flatten().tolist())).save(path)


def save_curves(
    path: Path, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, x: str, y: str, title: str
) -> None:
    """Writes a chart with one line (x values, y values) for each name."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ArgumentError(
            "path", "matplotlib to be installed (pip install 'quadform[reproduce]')", str(path)
        ) from None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for name, (xs, ys) in curves.items():
        axes.plot(xs, ys, label=name)
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
