"""Batches of inputs: which tensor is the main one, which are fitted to, and which sequence is shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.inspect._adapters import Batch
from quadform.inspect._views import EXCERPT

MAIN = ("input_ids", "pixel_values", "input_features", "input_values")
"""Names of the tensor whose first dimension counts the sequences, in order of preference."""
Size = tuple[int, ...]
Groups = dict[Size, list[Batch]]


def by_size(batches: Iterable[Batch], fit: Iterable[Batch] | None) -> tuple[Groups, Groups]:
    """(to fit on, to measure): batches grouped by the size of one input, such as (N,) tokens or (3, 224, 224) pixels."""
    measured = _group("batches", batches)
    if fit is not None:
        fitting = _group("fit", fit)
        if missing := sorted(set(measured) - set(fitting)):
            sizes = [size[0] if len(size) == 1 else size for size in sorted(measured)]
            raise ArgumentError("fit", f"batches of every length measured, {sizes}", f"none of {missing}")
        return fitting, measured
    fitting = {}
    for size, group in measured.items():
        fitting[size], measured[size] = _halves(size, group)
    return fitting, measured


def shape(batch: Batch) -> torch.Size:
    """The shape of a batch's main tensor: sequences first."""
    values = [value for value in batch.values() if isinstance(value, Tensor) and value.ndim >= 2]
    named = [batch[name] for name in MAIN if isinstance(batch.get(name), Tensor)]
    main = next(iter(named or values), None)
    if main is None or main.ndim < 2:
        raise ArgumentError("batches", "tensors (B, N, ...) in every mapping", sorted(batch))
    return main.shape


def example(batch: Batch) -> int:
    """The sequence that the views show: the one whose beginning has the most different tokens."""
    rows = [_beginning(batch, row) for row in range(shape(batch)[0])]
    return max(range(len(rows)), key=lambda row: len(set(rows[row])))


def tokens(batch: Batch, row: int, labels: Callable[[list[int]], list[str]] | None) -> tuple[str, ...]:
    """The first tokens of a sequence as strings; none when the inputs are no tokens."""
    if "input_ids" not in batch:
        return ()
    values = _beginning(batch, row)
    return tuple(labels(values)) if labels is not None else tuple(map(str, values))


def _group(name: str, batches: Iterable[Batch]) -> Groups:
    groups: Groups = defaultdict(list)
    for batch in batches:
        if not isinstance(batch, Mapping) or not any(isinstance(value, Tensor) for value in batch.values()):
            raise ArgumentError(name, "mappings of tensors, such as {'input_ids': ids}", type(batch).__name__)
        size = tuple(shape(batch))
        if 0 in size:
            raise ArgumentError(name, "batches with at least one sequence of at least one token", size)
        groups[size[1:2] if "input_ids" in batch else size[1:]].append(batch)
    if not groups:
        raise ArgumentError(name, "at least one batch", "none")
    return groups


def _halves(size: Size, group: list[Batch]) -> tuple[list[Batch], list[Batch]]:
    if len(group) > 1:
        return group[: len(group) // 2], group[len(group) // 2 :]
    count = shape(group[0])[0]
    if count < 2:
        raise ArgumentError(
            "batches",
            "two sequences or more of each length: one part is fitted to",
            f"1 of {size[0] if len(size) == 1 else size}",
        )
    cut = count // 2
    halves = [
        {
            key: value[part] if isinstance(value, Tensor) and value.ndim and value.shape[0] == count else value
            for key, value in group[0].items()
        }
        for part in (slice(cut), slice(cut, None))
    ]
    return [halves[0]], [halves[1]]


def _beginning(batch: Batch, row: int) -> list[int]:
    """The first token ids of a sequence that are no padding."""
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if ids is None:
        return []
    kept = ids[row][mask[row].bool()] if mask is not None and mask.ndim == 2 else ids[row]
    return [int(value) for value in kept[:EXCERPT]]
