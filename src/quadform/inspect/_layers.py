"""Everything that is measured at one site, and the layer of the report that it becomes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quadform._errors import ArgumentError
from quadform.inspect import _structure
from quadform.inspect._bounds import Bounds
from quadform.inspect._captured import Captured
from quadform.inspect._costs import Costs
from quadform.inspect._kinds import name_kind
from quadform.inspect._measures import Fitted, Fitting, Measuring
from quadform.inspect._mixers import Shape
from quadform.inspect._report import FormInfo, Head, Layer
from quadform.inspect._views import Snapshot
from quadform.inspect.candidates import CANDIDATES, Candidate

EXTRAS = ("bias", "softcap", "sink")


def form_infos(candidates: Sequence[Candidate]) -> dict[str, FormInfo]:
    """What the report says of each form, in order."""
    return {form.name: FormInfo(form.letter, form.description, form.oracle, form.kind) for form in candidates}


class Site:
    """One call of one attention module, measured on a stream of inputs."""

    def __init__(
        self, first: Captured, example: int, candidates: Sequence[Candidate], fitted: Fitted, bounds: bool
    ) -> None:
        self._candidates = candidates
        self.measuring = Measuring(candidates, fitted)
        self._snapshot = Snapshot(first, example)
        self._bounds = Bounds() if bounds else None
        self._shape = shape_of(first)
        self._site, self._extras = first.site, tuple(name for name in EXTRAS if getattr(first, name) is not None)

    def add(self, captured: Captured) -> None:
        """Adds one call to everything."""
        self.measuring.add(captured)
        if self._bounds is not None:
            self._bounds.add(captured)

    def layer(self, costs: Costs) -> Layer:
        """The layer of the report."""
        shape, measuring = self._shape, self.measuring
        return Layer(
            module=self._site[0],
            call=self._site[1],
            role="cross" if shape.cross else "self",
            causal=measuring.causal,
            structured=measuring.structured,
            queries=shape.queries,
            keys=shape.keys,
            grid=shape.grid.sizes,
            special=shape.grid.special,
            head_dim=shape.head_dim,
            kv_heads=shape.kv_heads,
            extras=self._extras,
            refusals=measuring.refusals,
            costs=costs.layer(shape, [form for form in self._candidates if form.name not in measuring.refusals]),
            heads=self._heads(),
        )

    def _heads(self) -> tuple[Head, ...]:
        errors, sums, place = self.measuring.errors(), self.measuring.structure.values, self._shape.grid
        structure = _structure.summarise(sums, place)
        bounds = self._bounds.values() if self._bounds is not None else [{} for _ in errors]
        if self._bounds is not None:
            structure["rank"] = [_structure.number(value) for value in self._bounds.ranks()]
        forms = form_infos(self._candidates)
        heads = []
        for at, error in enumerate(errors):
            statistics = {name: values[at] for name, values in structure.items()}
            views = self._snapshot.views(at, sums, place)
            heads.append(Head(name_kind(error, forms), error, statistics, bounds[at], views))
        return tuple(heads)


def inspect_heads(
    fit: Sequence[Captured],
    measured: Sequence[Captured],
    *,
    candidates: Sequence[Candidate] = CANDIDATES,
    bounds: bool = True,
    costs: bool = False,
) -> Layer:
    """Measures the heads of one site whose calls are at hand, such as planted ones; see `inspect`."""
    if not fit or not measured:
        raise ArgumentError("measured" if fit else "fit", "at least one captured call", "none")
    with torch.no_grad():
        fitting = Fitting(candidates)
        for captured in fit:
            fitting.add(captured)
        site = Site(measured[0], 0, candidates, fitting.fitted(), bounds)
        for captured in measured:
            site.add(captured)
        return site.layer(Costs(measure=costs))


def shape_of(captured: Captured) -> Shape:
    """The shape of a call, for one sequence."""
    (_, heads, queries, dim), (_, kv_heads, keys, _) = captured.q.shape, captured.k.shape
    return Shape(
        heads, kv_heads, queries, keys, dim, captured.v.shape[-1], captured.causal, captured.cross, captured.place,
        captured.q.dtype,
    )  # fmt: skip
