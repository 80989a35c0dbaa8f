"""Where the tokens of a vision module stand: patches of an image behind class and register tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

from torch import Tensor, nn

from quadform.inspect import Batch, Grid

MOST_SPECIAL = 16
TEXT = re.compile(r"text|language|decoder|lm_head|qformer", re.IGNORECASE)
"""Parts of a model with images that do not work on patches."""
STRIDES = (8, 14, 16, 32, 64)
"""Cells of the feature maps that convolutional stems hand to an encoder without patches, such as DETR's."""

ELSEWHERE = frozenset({"videoprism_vision_model", "vit_mae", "xclip", "xclip_vision_model", "yolos"})
"""Types of models with tokens behind their patches, or with patches in a random order: a line, no grid."""


class Grids:
    """Finds the grid of a module's tokens from the size of the images and the patches named in the configurations."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        pixels = batch.get("pixel_values")
        known = ELSEWHERE.isdisjoint(getattr(part, "model_type", "") for part in _configurations(model.config))
        self._image = tuple(pixels.shape[-2:]) if isinstance(pixels, Tensor) and pixels.ndim == 4 and known else None
        self._patches = list(dict.fromkeys(_patch_sizes(model.config))) if self._image else []
        self._windows = list(dict.fromkeys(_windows(model.config))) if self._image else []

    def find(self, name: str, tokens: int) -> Grid | None:
        """The grid of `tokens` tokens of the module of that name; None, a line, where nothing fits."""
        if self._image is None or TEXT.search(name):
            return None
        for size in self._windows:
            if size * size == tokens:
                return Grid((size, size))
        for patch in self._patches:
            sizes = tuple(side // step for side, step in zip(self._image, patch, strict=True))
            cells = prod(sizes)
            if cells and 0 <= tokens - cells <= MOST_SPECIAL:
                return Grid(sizes, tokens - cells)
        if self._patches:
            return None
        for stride in STRIDES:
            sizes = tuple(-(-side // stride) for side in self._image)
            if prod(sizes) == tokens:
                return Grid(sizes)
        return None


def _configurations(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            yield from _configurations(getattr(config, name))


def _patch_sizes(config: Any) -> Iterator[tuple[int, int]]:
    for part in _configurations(config):
        size = getattr(part, "patch_size", None)
        if isinstance(size, int) and size > 0:
            yield size, size
        elif isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(x, int) and x > 0 for x in size):
            yield size[0], size[1]


def _windows(config: Any) -> Iterator[int]:
    for part in _configurations(config):
        size = getattr(part, "window_size", None)
        if isinstance(size, int) and size > 0:
            yield size
