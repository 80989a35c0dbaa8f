"""Mixers from text: one for every layer, or a JSON file that names layers and head groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quadform._errors import ArgumentError
from quadform.algebra import Edges, Weights, from_json, parse
from quadform.integrations.hugging_face._mixers import Mixers


def read_mixers(text: str) -> Mixers:
    """Mixers as `with_mixers` takes them, from 'edges; weights' or the path of a JSON file.

    The file maps the index of a layer, the name of its attention module, or "*" for all others, to a mixer or a list of
    mixers with their key-value heads. A mixer is "edges; weights", or an object with edges, weights (each an expression or
    an object as `to_json` writes it), tensors (lists of numbers by name) and, in a list, heads; null keeps the softmax:

        {"*": "Causal(); Kernel('elu1')", "0": [{"heads": [0, 1], "edges": "Window(31)", "weights": "Softmax()"}], "3": null}

    Errors: ArgumentError.
    """
    if ";" in text:
        return _pair(text)
    path = Path(text)
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        expected = '"edges; weights" such as "Causal(); Kernel(\'elu1\')", or a JSON file of mixers'
        raise ArgumentError("--mixer", expected, f"{text} ({error})") from None
    if not isinstance(data, Mapping):
        raise ArgumentError("--mixer", "a JSON object of layers", f"{type(data).__name__} in {path}")
    return {int(key) if key.isdecimal() else key: _layer(key, value) for key, value in data.items()}


def _layer(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [(_heads(key, item), _mixer(key, item, "heads")) for item in value]
    return None if value is None else _mixer(key, value)


def _heads(key: str, item: Any) -> tuple[Any, ...]:
    heads = item.get("heads") if isinstance(item, Mapping) else None
    if not isinstance(heads, list):
        raise ArgumentError("--mixer", f'a list "heads" for each mixer of layer {key}', repr(item)[:80])
    return tuple(heads)


def _mixer(key: str, value: Any, *more: str) -> Any:
    if isinstance(value, str):
        return _pair(value)
    known = {"edges", "weights", "tensors", *more}
    if not isinstance(value, Mapping) or not {"edges", "weights"} <= value.keys() or value.keys() - known:
        raise ArgumentError("--mixer", f"edges, weights and perhaps tensors for layer {key}", repr(value)[:80])
    try:
        tensors = {name: torch.tensor(x, dtype=torch.float32) for name, x in value.get("tensors", {}).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ArgumentError("--mixer", f"lists of numbers by name as tensors of layer {key}", str(error)) from None
    return (*_checked(_described(value["edges"]), _described(value["weights"]), repr(value)[:80]), tensors)


def _pair(text: str) -> tuple[Edges, Weights]:
    edges, _, weights = text.partition(";")
    return _checked(parse(edges), parse(weights), repr(text))


def _checked(edges: Any, weights: Any, text: str) -> tuple[Edges, Weights]:
    if not isinstance(edges, Edges) or not isinstance(weights, Weights):
        raise ArgumentError("--mixer", "edges and then weights, such as Causal(); Kernel('elu1')", text)
    return edges, weights


def _described(value: Any) -> Any:
    return parse(value) if isinstance(value, str) else from_json(json.dumps(value))
