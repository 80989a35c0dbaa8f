"""Law 2: a stream read at once, in chunks and step by step is one stream; a state is a value."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quadform.laws._cases import DTYPES, Case, draw
from quadform.laws._oracle import accepting, bounds, dims_of, formula, resolved_edges
from quadform.laws._outcome import Outcome, distance
from quadform.laws._tensors import Source


def cut(case: Case, inputs: Mapping[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    """The inputs of the tokens start ... stop - 1 alone."""
    dims, out = dims_of(case), {}
    for name, x in inputs.items():
        for axis, dim in enumerate(dims[name]):
            x = x.narrow(axis, start, stop - start) if dim in ("Q", "K") else x
        out[name] = x
    return out


def stream(case: Case, splits: list[int], state: Any = None) -> tuple[Tensor, Any]:
    """The whole sequence, read in pieces of the given lengths."""
    inputs, parts, start = case.leaves(case.dtype), [], 0
    for size in splits:
        y, state = case.attend("recurrent", cut(case, inputs, start, start + size), state=state, return_state=True)
        parts.append(y)
        start += size
    return torch.cat(parts, 2), state


def saved(state: Any) -> Any:
    """The state after a round trip through a file."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def streaming(row: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """Every split of a stream gives the parallel result; restored, forked and copied states continue bit for bit."""
    case = draw(row, seed, DTYPES[dtype], limit, plain=True, square=True)
    if not case.edges.is_causal or "recurrent" not in accepting(case):
        return []
    source = Source.of("streaming", row, seed, dtype)
    n, edges = case.v.shape[2], resolved_edges(case)
    expected = formula(case, case.leaves(torch.float64), edges)
    bound = bounds(case, expected, edges)
    chunks: list[int] = []
    rest = n
    while rest:
        chunks.append(source.rng.randint(0, rest) if len(chunks) < 8 else rest)
        rest -= chunks[-1]
    ways = {"parallel": [n], "chunked": [*chunks, 0], "stepwise": [1] * n or [0]}

    def outcome(what: str, error: float, tolerance: float) -> Outcome:
        witness = f"{what}, splits {ways.get(what, chunks)}: {case.describe()}"
        return Outcome("streaming", row, "recurrent", dtype, error, tolerance, witness)

    out = [outcome(what, distance(stream(case, splits)[0], expected), bound) for what, splits in ways.items()]
    return out + [outcome(what, error, 0.0) for what, error in _value(case, n // 2)] if all(o.ok for o in out) else out


def _value(case: Case, half: int) -> list[tuple[str, float]]:
    """Differences, all 0, between continuing from a state and from its copies, twice, after other continuations."""
    inputs, n = case.leaves(case.dtype), case.v.shape[2]
    first, second = cut(case, inputs, 0, half), cut(case, inputs, half, n)
    _, state = case.attend("recurrent", first, return_state=True)
    backup = copy.deepcopy(state)

    def onwards(held: Any) -> Tensor:
        y, _ = case.attend("recurrent", second, state=held, return_state=True)
        return y

    y = onwards(state)
    other = {name: x if name in ("rotations",) else -x.abs() for name, x in first.items()}
    case.attend("recurrent", other, state=state, return_state=True)
    again = {"fork": onwards(state), "copy": onwards(backup), "restored": onwards(saved(state))}
    return [(what, 0.0 if torch.equal(x, y) else distance(x, y) or math.inf) for what, x in again.items()]
