"""A model's outputs from two runs, compared where they are no padding."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor

from quadform._errors import QuadformError


def tensors(output: Any, name: str = "output") -> dict[str, Tensor]:
    """The floating-point tensors inside an output, by their path."""
    if isinstance(output, Tensor):
        return {name: output} if output.is_floating_point() else {}
    if isinstance(output, Mapping):
        parts = [(f"{name}.{key}", value) for key, value in output.items()]
    elif isinstance(output, tuple | list):
        parts = [(f"{name}[{at}]", value) for at, value in enumerate(output)]
    else:
        parts = []
    return {key: tensor for path, part in parts for key, tensor in tensors(part, path).items()}


def worst_difference(
    model: str,
    own: Mapping[str, Tensor],
    ours: Mapping[str, Tensor],
    rows: Mapping[tuple[int, ...], Tensor],
    tolerance: float,
) -> tuple[float, str, float]:
    """(relative error, name, what it may be) of the output that exceeds its tolerance most."""
    found = []
    for name in own:
        a, b = _unpadded(own[name], rows), _unpadded(ours[name], rows)
        if not bool(torch.isfinite(a).all()):
            raise QuadformError(f"{model}: its {name} is not finite (NaN or infinity)")
        norm = float(a.double().norm())
        error = float((a.double() - b.double()).norm()) / norm if norm else 0.0
        found.append((error if error == error else inf, name, max(tolerance, torch.finfo(a.dtype).eps)))
    return max(found, key=lambda entry: entry[0] / entry[2])


def _unpadded(tensor: Tensor, rows: Mapping[tuple[int, ...], Tensor]) -> Tensor:
    """The rows of a (B, N, ...) or (N, B, ...) tensor that are no padding; where B = N those that are none either way."""
    shape = tuple(tensor.shape[:2])
    found = [rows[shape]] if shape in rows else []
    if shape[::-1] in rows and len(shape) == 2:
        found.append(rows[shape[::-1]].T)
    for mask in found[1:]:
        found[0] = found[0] & mask
    return tensor[found[0]] if found else tensor
