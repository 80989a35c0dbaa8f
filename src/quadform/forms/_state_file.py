"""States on disk: one safetensors file for the states of any number of layers, written whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from quadform._errors import QuadformError

SCHEMA = "quadform/state/1"
LARGEST = 1 << 36
"""Bytes of a file that is read, unless the caller allows more."""
LONGEST = 1 << 40
"""Of a dimension of a tensor."""

Part = tuple[Mapping[str, Tensor], Mapping[str, str]]
"""A state as `State.to_tensors` takes it apart."""


def write(path: str | os.PathLike[str], layers: Sequence[Part | Sequence[Part]]) -> None:
    """The file of these layers' states: a temporary sibling, flushed to disk and renamed.

    The tensor `name` of layer i is the entry "i.name", of its head group j "i.j.name". The metadata holds the schema and, as
    JSON, kind and mixer of each state.

    Errors: QuadformError where the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    about: list[Any] = []
    for i, layer in enumerate(layers):
        single = isinstance(layer, tuple)
        parts: Sequence[Any] = [layer] if single else layer
        for j, (named, _) in enumerate(parts):
            lead = f"{i}." if single else f"{i}.{j}."
            tensors |= {lead + name: x.detach().to("cpu", copy=True).contiguous() for name, x in named.items()}
        described = [dict(metadata) for _, metadata in parts]
        about.append(described[0] if single else described)
    path = Path(path)
    sibling = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        save_file(tensors, sibling, {"schema": SCHEMA, "states": json.dumps(about)})
        _flush(sibling)
        sibling.replace(path)
        if os.name == "posix":
            _flush(path.parent)
    except (OSError, SafetensorError) as error:
        raise QuadformError(f"{path} cannot be written: {error}") from None
    finally:
        sibling.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Waits until what was written there is on the disk."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: str | os.PathLike[str], largest: int = LARGEST) -> list[Part | list[Part]]:
    """What `write` wrote. Sizes are looked at before anything is loaded; nothing in the file is executed.

    Errors: QuadformError names the file and what is wrong with it.
    """
    path = Path(path)
    with naming(path):
        size = path.stat().st_size
        if size > largest:
            raise ValueError(f"it has {size:,} bytes, more than the {largest:,} that are allowed")
        with safe_open(path, framework="pt") as file:
            about = _about(file.metadata())
            names = list(file.keys())
            for name in names:
                _check_size(name, file.get_slice(name).get_shape())
            return _sorted(about, {name: file.get_tensor(name) for name in names})


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors inside become QuadformErrors that name the file."""
    try:
        yield
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise QuadformError(f"{path} is no file of states that can be read: {error}") from None


def _about(metadata: Mapping[str, str] | None) -> list[Any]:
    """The description of each layer's states."""
    schema = (metadata or {}).get("schema")
    if metadata is None or schema != SCHEMA:
        raise ValueError(f"its schema is {schema!r}, and this version reads {SCHEMA!r}")
    unknown = sorted(set(metadata) - {"schema", "states"})
    if unknown:
        raise ValueError(f"unknown metadata {unknown}")
    about = json.loads(metadata.get("states", "null"))
    if not isinstance(about, list) or not all(_is_layer(layer) for layer in about):
        raise ValueError("its metadata 'states' is no list of descriptions of states")
    return about


def _is_layer(layer: Any) -> bool:
    parts = layer if isinstance(layer, list) else [layer]
    return all(
        isinstance(p, dict) and set(p) == {"kind", "mixer"} and all(isinstance(t, str) for t in p.values())
        for p in parts
    )


def _check_size(name: str, shape: Sequence[int]) -> None:
    if len(shape) > 8 or any(size > LONGEST for size in shape):
        raise ValueError(f"{name!r} has the shape {tuple(shape)}, which no state has")


def _sorted(about: list[Any], tensors: dict[str, Tensor]) -> list[Part | list[Part]]:
    """The tensors beside the description of their state, every one used."""

    def part(lead: str, metadata: Mapping[str, str]) -> Part:
        own = [name for name in tensors if name.startswith(lead)]
        return {name.removeprefix(lead): tensors.pop(name) for name in own}, metadata

    out: list[Part | list[Part]] = []
    for i, layer in enumerate(about):
        if isinstance(layer, list):
            out.append([part(f"{i}.{j}.", metadata) for j, metadata in enumerate(layer)])
        else:
            out.append(part(f"{i}.", layer))
    if tensors:
        raise ValueError(f"unknown entries {sorted(tensors)[:5]}")
    return out
