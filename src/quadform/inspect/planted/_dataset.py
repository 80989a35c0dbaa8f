"""The planted heads as a data set: made from a seed, saved, and loaded with as much noise in the scores as wanted."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.inspect._captured import Captured
from quadform.inspect._write import check_writable
from quadform.inspect.planted._recipes import NOISE, RECIPES, VALUE_MEAN, WIDTH, normal

SCHEMA = "quadform/planted/1"
KINDS = tuple(dict.fromkeys(recipe.kind for recipe in RECIPES.values()))
"""The kinds of heads; no form fits those called "mixed"."""
LEVELS = (0.0, 0.1, 0.3, 1.0)
"""Standard deviations of the noise in the scores at which the set is usually measured."""
_VALUES, _NOISE_Q, _NOISE_K = "values", "noise.q", "noise.k"


@dataclass(frozen=True)
class Planted:
    """A head of known kind.

    Attributes:
        name: which head of the set.
        kind: one of `KINDS`.
        causal: no query sees a later key.
        fit, measured: the first and the second half of the sequences, q and k (B, 1, N, D) and v (B, 1, N, E), float32,
            scaling 1. The last 4 columns of q and k are the noise.
    """

    name: str
    kind: str
    causal: bool
    fit: Captured
    measured: Captured


def generate(seed: int = 0, noise: float = 0.0) -> dict[str, Planted]:
    """All planted heads by name: 8 sequences of 96 tokens each, in halves; `noise` as in `load`."""
    _check_noise(noise)
    return _planted(_tensors(seed), {name: (recipe.kind, recipe.causal) for name, recipe in RECIPES.items()}, noise)


def save(path: str | Path, seed: int = 0) -> None:
    """Writes the set of a seed as safetensors, whole or not at all.

    "values" (B, 1, N, E), "noise.q" and "noise.k" (B, 1, N, 4) belong to all heads; each head has "<name>.q" and
    "<name>.k" (B or 1, 1, N, D), 1 where all sequences share them. The metadata are "schema", "seed" and "heads", the
    JSON of {name: {"kind": ..., "causal": ...}}.
    """
    path = Path(path)
    check_writable("path", path)
    heads = {name: {"kind": recipe.kind, "causal": recipe.causal} for name, recipe in RECIPES.items()}
    metadata = {"schema": SCHEMA, "seed": str(seed), "heads": json.dumps(heads)}
    data = _in_order(to_bytes(_tensors(seed), metadata))
    sibling = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        sibling.write_bytes(data)
        sibling.replace(path)
    finally:
        sibling.unlink(missing_ok=True)


def load(path: str | Path | None = None, noise: float = 0.0) -> list[Planted]:
    """The heads of a file that `save` wrote, or those of seed 0 where no file is given.

    Args:
        path: the file.
        noise: standard deviation, over all pairs, of the noise that is added to the scores; any number from 0 on.

    Raises:
        ArgumentError: there is no such file, it is no file of this schema, or a tensor is missing or malformed.
    """
    if path is None:
        return list(generate(0, noise).values())
    _check_noise(noise)
    tensors, metadata = _read(Path(path))
    if metadata.get("schema") != SCHEMA:
        raise ArgumentError("path", f"a file with schema {SCHEMA!r}", f"schema {metadata.get('schema')!r} in {path}")
    heads = _heads(metadata, path)
    _check_tensors(tensors, heads, path)
    return list(_planted(tensors, heads, noise).values())


def _tensors(seed: int) -> dict[str, Tensor]:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise ArgumentError("seed", "a whole number from 0 to 2^31 - 1", repr(seed))
    generator = torch.Generator().manual_seed(1000 * seed)
    values = VALUE_MEAN + normal(generator, WIDTH)
    values[:, :, 0] = 0.0
    tensors = {_VALUES: values, _NOISE_Q: normal(generator, NOISE), _NOISE_K: normal(generator, NOISE)}
    for number, (name, recipe) in enumerate(RECIPES.items(), 1):
        q, k = recipe.make(torch.Generator().manual_seed(1000 * seed + number), recipe.causal)
        tensors |= {f"{name}.q": q, f"{name}.k": k}
    return {name: tensor.float().contiguous() for name, tensor in tensors.items()}


def _in_order(data: bytes) -> bytes:
    """The same file with sorted metadata, whose order is random otherwise: one seed gives one file."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]


def _planted(tensors: Mapping[str, Tensor], heads: Mapping[str, tuple[str, bool]], noise: float) -> dict[str, Planted]:
    values, queries, keys = tensors[_VALUES], tensors[_NOISE_Q], tensors[_NOISE_K]
    batch, _, n, _ = values.shape
    level = math.sqrt(noise / _deviation(queries, keys))
    found = {}
    for name, (kind, causal) in heads.items():
        q, k = (
            torch.cat([tensors[f"{name}.{side}"].expand(batch, -1, -1, -1), level * extra], -1)
            for side, extra in (("q", queries), ("k", keys))
        )
        keep = torch.ones(n, n, dtype=torch.bool)
        keep = (keep.tril() if causal else keep).expand(batch, 1, n, n)
        output = (q @ k.transpose(-1, -2)).masked_fill(~keep, -math.inf).softmax(-1) @ values
        parts = (slice(0, batch // 2), slice(batch // 2, batch))
        fit, measured = (Captured(name, 0, q[p], k[p], values[p], keep[p], 1.0, output[p]) for p in parts)
        found[name] = Planted(name, kind, causal, fit, measured)
    return found


def _deviation(queries: Tensor, keys: Tensor) -> float:
    return float((queries.double() @ keys.double().transpose(-1, -2)).std())


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except OSError as error:
        raise ArgumentError("path", "a file of planted heads", f"{path}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise ArgumentError("path", "a safetensors file", f"{path}: {error}") from None


def _heads(metadata: Mapping[str, str], path: str | Path) -> dict[str, tuple[str, bool]]:
    try:
        data: Any = json.loads(metadata["heads"])
        heads = {str(name): (head["kind"], head["causal"]) for name, head in data.items()}
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError):
        raise ArgumentError("path", 'metadata "heads": {name: {"kind": ..., "causal": ...}}', str(path)) from None
    for name, (kind, causal) in heads.items():
        if kind not in KINDS or not isinstance(causal, bool):
            raise ArgumentError(
                "path", f"kinds among {', '.join(KINDS)}; causal true or false", f"{kind}, {causal} for {name}"
            )
    if not heads:
        raise ArgumentError("path", "at least one head", f"none in {path}")
    return heads


def _check_tensors(tensors: Mapping[str, Tensor], heads: Mapping[str, object], path: str | Path) -> None:
    names = [_VALUES, _NOISE_Q, _NOISE_K, *(f"{head}.{side}" for head in heads for side in "qk")]
    if missing := [name for name in names if name not in tensors]:
        raise ArgumentError("path", f"tensors {', '.join(missing[:3])}", f"none in {path}")
    for name in names:
        tensor = tensors[name]
        if tensor.dtype != torch.float32 or tensor.ndim != 4 or not bool(torch.isfinite(tensor).all()):
            found = f"{tuple(tensor.shape)}, {tensor.dtype}".replace("torch.", "")
            raise ArgumentError(name, "finite float32 numbers (B, 1, N, D)", f"{found} in {path}")
    batch, one, n, _ = tensors[_VALUES].shape
    if batch < 2 or one != 1 or n < 2:
        raise ArgumentError(_VALUES, "(B, 1, N, E) with B and N of at least 2", tuple(tensors[_VALUES].shape))
    for name in names:
        shape, pair = tensors[name].shape, tensors[f"{name[:-1]}k" if name != _VALUES else name].shape
        if shape[0] not in (1, batch) or shape[1:3] != (1, n) or shape[-1] != pair[-1]:
            raise ArgumentError(name, f"({batch}, 1, {n}, D), the same D for q and k", tuple(shape))
    if not _deviation(tensors[_NOISE_Q], tensors[_NOISE_K]) > 0:
        raise ArgumentError(f"{_NOISE_Q} and {_NOISE_K}", "scores that vary", f"none that do in {path}")


def _check_noise(noise: float) -> None:
    if not (math.isfinite(noise) and noise >= 0):
        raise ArgumentError("noise", "a finite standard deviation of at least 0", noise)
