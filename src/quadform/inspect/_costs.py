"""What each form costs for a layer, measured on this machine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Hybrid, Kernel
from quadform.forms import Explanation, Watch, attend, crowded, explain, machine, trouble
from quadform.inspect._mixers import Mixer, Shape, attention
from quadform.inspect._report import FormCost, Timing

OWN = "attention"
"""The name under which the layer's own softmax attention is reported."""
ENOUGH = 0.15
"""Seconds of repeats of one form."""
REPEATS = 15
ATTEMPTS = 3
PATIENCE = 5.0
"""Seconds that a disturbed measurement may have taken to be tried again."""
SLOW = 2.0
"""A form whose first run takes this many seconds is not run again."""
MEMORY = 2**30
"""Bytes that one run may need; a form that needs more is timed on some of the heads and its time multiplied."""

Run = Callable[[], object]
Inputs = tuple[Tensor, Tensor, Tensor]


class Runnable(Protocol):
    """What is timed: a form of a name that can say how it would run."""

    @property
    def name(self) -> str: ...

    def mixer(self, shape: Shape) -> Mixer | None:
        """The form as quadform would run it; None where it cannot be run."""


class Costs:
    """Measures forms for layers, each shape once.

    One sequence, all heads of the layer, float32 on the CPU, random normal inputs, the form that "auto" chooses; repeats of
    all forms and of `scaled_dot_product_attention` take turns, and the median counts. Where other processes use the
    machine nothing is timed, and `timing` says why. A form that needs more than 2 GiB for one head is not timed either.

    Args:
        measure: whether to time at all; operations and states are counted in any case.
    """

    def __init__(self, measure: bool = True) -> None:
        self._known: dict[tuple[Shape, tuple[str, ...]], dict[str, FormCost]] = {}
        self._refusal = None if measure else "not asked for"
        self._checked = not measure

    def timing(self) -> Timing:
        """On what the seconds were measured, or in a sentence why they were not."""
        return Timing(machine(), torch.get_num_threads(), self._refusal)

    def layer(self, shape: Shape, candidates: Iterable[Runnable]) -> dict[str, FormCost]:
        """What a layer costs: by form, and under "attention" its own attention. Forms that cannot be run are left out."""
        forms = tuple(candidates)
        key = shape, tuple(form.name for form in forms)
        if key not in self._known:
            mixers = {OWN: attention(shape)}
            mixers |= {form.name: mixer for form in forms if (mixer := form.mixer(shape)) is not None}
            calls = {name: _Call(mixer, shape) for name, mixer in mixers.items()}
            seconds = self._time(calls)
            self._known[key] = {name: call.cost(seconds.get(name)) for name, call in calls.items()}
        return self._known[key]

    def _time(self, calls: dict[str, _Call]) -> dict[str, float]:
        """Median seconds by form; empty from the first time on that the machine is not quiet."""
        if not self._checked:
            self._checked, self._refusal = True, trouble()
        if self._refusal is not None:
            return {}
        inputs: dict[Shape, Inputs] = {}
        runs = {name: run for name, call in calls.items() if (run := call.prepared(name == OWN, inputs)) is not None}
        for _ in range(ATTEMPTS):
            watch, start = Watch(), time.perf_counter()
            seconds = take_turns(runs)
            self._refusal = crowded(watch.others())
            if self._refusal is None:
                return {name: taken * calls[name].share for name, taken in seconds.items()}
            if time.perf_counter() - start > PATIENCE:
                break
        return {}


class _Call:
    """One form on one layer: what it would do, and how to run it."""

    def __init__(self, mixer: Mixer, shape: Shape) -> None:
        self.mixer, self.shape = mixer, _cells(shape) if mixer.cells else shape
        self.explanation = self._explain()
        self.groups = self.shape.heads // max(1, self.shape.kv_heads)
        self._timed = max(1, min(self.shape.kv_heads, int(self.shape.kv_heads * MEMORY / max(1.0, self._needs()))))

    @property
    def share(self) -> float:
        """How many times the heads that are timed make up the layer."""
        return self.shape.kv_heads / self._timed

    def cost(self, seconds: float | None) -> FormCost:
        """With operations and state by the form's own count; only a causal head and keys of another sequence are a stream."""
        chosen, stream = self.explanation.chosen, self.explanation.costs.get("recurrent")
        assert chosen is not None
        streams = stream is not None and (self.shape.causal or self.shape.cross)
        return FormCost(seconds, self.explanation.costs[chosen].flops, stream.state if stream and streams else None)

    def prepared(self, own: bool, inputs: dict[Shape, Inputs]) -> Run | None:
        """What runs it once; None where one head would need more than twice the memory, or there is nothing to compute."""
        if self._needs() / max(1, self.shape.kv_heads) > 2 * MEMORY or not self.shape.queries * self.shape.keys:
            return None
        small = dataclasses.replace(
            self.shape, heads=self._timed * self.groups, kv_heads=self._timed, dtype=torch.float32
        )
        q, k, v = inputs[small] if small in inputs else inputs.setdefault(small, _inputs(small))
        if own:
            return partial(_attention, q, k, v, self.groups, small.causal)
        tensors, grid = self.mixer.tensors(small), small.grid.sizes if self.mixer.cells else None
        return partial(attend, q, k, v, self.mixer.edges, self.mixer.weights, tensors=tensors, grid=grid)

    def _explain(self) -> Explanation:
        shape, grid = self.shape, self.shape.grid.sizes if self.mixer.cells else None
        q, k, v = (torch.empty(1, *size, dtype=shape.dtype, device="meta") for size in _sizes(shape))
        tensors = {name: value.to("meta") for name, value in self.mixer.tensors(shape).items()}
        return explain(q, k, v, self.mixer.edges, self.mixer.weights, tensors=tensors, grid=grid)

    def _needs(self) -> float:
        """About how many bytes a run needs: what it moves, its features, and the ranked scores of edges that content picks."""
        shape, weights = self.shape, self.mixer.weights
        kernel = weights.far if isinstance(weights, Hybrid) else weights
        features = kernel.phi.features(shape.head_dim) if isinstance(kernel, Kernel) else 0
        assert self.explanation.chosen is not None
        moved = self.explanation.costs[self.explanation.chosen].bytes
        ranked = 32.0 * shape.queries * shape.keys if self.mixer.edges.content else 0.0
        return moved + shape.heads * (12.0 * (shape.queries + shape.keys) * features + ranked)


def take_turns(runs: dict[str, Run]) -> dict[str, float]:
    """Median seconds of each: one run to warm up, then rounds in which all take turns.

    One is finished after 15 repeats or 0.15 s, but has three repeats where they take less than a second; one whose first
    run takes 2 s is not run again.
    """
    times: dict[str, list[float]] = {}
    with torch.inference_mode():
        left = {}
        for name, run in runs.items():
            first = _seconds(run)
            times[name] = [first] if first >= SLOW else []
            if first < SLOW:
                left[name] = run
        while left:
            for name, run in list(left.items()):
                its = times[name]
                its.append(_seconds(run))
                total = sum(its)
                if len(its) >= REPEATS or total >= 1.0 or (total >= ENOUGH and len(its) >= 3):
                    del left[name]
    return {name: median(its) for name, its in times.items()}


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _attention(q: Tensor, k: Tensor, v: Tensor, groups: int, causal: bool) -> Tensor:
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _cells(shape: Shape) -> Shape:
    """The same layer without the special tokens."""
    special = shape.grid.special
    grid = dataclasses.replace(shape.grid, special=0)
    return dataclasses.replace(shape, queries=shape.queries - special, keys=shape.keys - special, grid=grid)


def _inputs(shape: Shape) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, *size, dtype=shape.dtype, device="cpu", generator=generator) for size in _sizes(shape))
    return q, k, v


def _sizes(shape: Shape) -> tuple[tuple[int, int, int], ...]:
    """(heads, tokens, dimension) of q, k and v."""
    return (
        (shape.heads, shape.queries, shape.head_dim),
        (shape.kv_heads, shape.keys, shape.head_dim),
        (shape.kv_heads, shape.keys, shape.value_dim),
    )
