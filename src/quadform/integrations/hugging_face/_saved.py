"""A `StateCache` and its tokens in one file, from which another process goes on."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from quadform._errors import ArgumentError, QuadformError
from quadform.forms import State
from quadform.integrations.hugging_face._cache import StateCache

if TYPE_CHECKING:
    from quadform.integrations.hugging_face._mixed import Mixed

SCHEMA = "quadform generation 1"


def save_cache(
    cache: StateCache, path: str | os.PathLike[str], input_ids: Tensor, attention_mask: Tensor | None = None
) -> None:
    """Writes the states, and the tokens (B, N) so far, to one safetensors file, whole or not at all.

    The last of the tokens need not have gone through the cache: `generate` returns one more than it has.

    Errors: ArgumentError where the tokens do not fit the cache; QuadformError where the file cannot be written.
    """
    rows, n = input_ids.shape
    if rows != cache.batch_size or n < cache.seen:
        expected = f"{cache.batch_size} rows of at least {cache.seen} tokens"
        raise ArgumentError("input_ids", expected, str(tuple(input_ids.shape)))
    tensors, about = {"tokens": input_ids.to("cpu", torch.int32)}, {}
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if mask.shape != input_ids.shape:
        raise ArgumentError("attention_mask", f"the shape of input_ids, {(rows, n)}", str(tuple(mask.shape)))
    tensors["mask"] = mask.to("cpu", torch.bool)
    for name, state in cache.states().items():
        parts, about[name] = state.to("cpu").to_tensors()
        tensors |= {f"{name}.{key}": x for key, x in parts.items()}
    metadata = {
        "schema": SCHEMA,
        "model": fingerprint(cache.mixed.model),
        "seen": str(cache.seen),
        "states": json.dumps(about),
    }
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        save_file({name: x.contiguous().clone() for name, x in tensors.items()}, beside, metadata)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(target)
    except (OSError, SafetensorError) as error:
        raise QuadformError(f"the state cannot be written to {target}: {error}") from None
    finally:
        beside.unlink(missing_ok=True)


def load_cache(mixed: Mixed, path: str | os.PathLike[str]) -> tuple[StateCache, dict[str, Tensor]]:
    """(the cache, {"input_ids", "attention_mask"}), from which `generate(**inputs, cache=cache)` goes on.

    Errors: ArgumentError for a file that is none, that another model or other mixers wrote, or whose parts do not fit.
    """
    device = mixed.model.device
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        about: Any = json.loads(metadata.get("states", "{}"))
        seen = int(metadata.get("seen", "0"))
    except (OSError, SafetensorError, ValueError) as error:
        raise ArgumentError("state", "a file that save_cache wrote", f"{path}: {error}") from None
    if metadata.get("schema") != SCHEMA or not isinstance(about, dict) or not {"tokens", "mask"} <= tensors.keys():
        raise ArgumentError("state", f"a file of schema {SCHEMA!r}", f"{path} of {metadata.get('schema')!r}")
    if metadata.get("model") != fingerprint(mixed.model):
        raise ArgumentError("state", "a file that this model wrote", f"{path} of a model with other weights")
    tokens, mask = tensors.pop("tokens"), tensors.pop("mask")
    if tokens.dim() != 2 or mask.shape != tokens.shape or not 0 <= seen <= tokens.shape[1]:
        raise ArgumentError("state", f"tokens (B, N) with N of at least {seen}", str(tuple(tokens.shape)))
    states = {}
    for name, entry in about.items():
        mine = {key.removeprefix(f"{name}."): x for key, x in tensors.items() if key.startswith(f"{name}.")}
        states[name] = State.from_tensors(mine, entry).to(device)
    cache = mixed.cache()
    cache.resume(states, seen)
    if cache.batch_size != tokens.shape[0]:
        raise ArgumentError("state", f"{cache.batch_size} rows of tokens, as its states have", str(tokens.shape[0]))
    inputs = {"input_ids": tokens.to(device, torch.int64), "attention_mask": mask.to(device, torch.int64)}
    return cache, inputs


def fingerprint(model: Any) -> str:
    """A digest of names, shapes and some of the numbers of a model's weights."""
    digest = hashlib.sha256()
    for name, x in sorted(model.state_dict().items()):
        some = x.detach().flatten()
        some = some[:: max(some.numel() // 64, 1)].to("cpu", torch.float64)
        digest.update(f"{name} {tuple(x.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()
