"""The report of an inspection: plain data, JSON both ways, and three ways to read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quadform._errors import ArgumentError
from quadform.inspect._views import Views
from quadform.inspect._write import write_whole

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = "quadform/inspect/2"
LEVELS = (0.05, 0.10, 0.20)
TIE = 0.001
"""Errors that differ by less are a tie, which the form named first wins."""
Metric = Literal["raw", "centred"]


@dataclass(frozen=True)
class FormError:
    """Held-out error of a form for a head; `centred` is None where the head's output never varies."""

    raw: float
    centred: float | None


@dataclass(frozen=True)
class FormInfo:
    """A form that heads were compared with, and the kind of head that it fits, such as "convolution"."""

    letter: str
    description: str
    oracle: bool
    kind: str


@dataclass(frozen=True)
class FormCost:
    """What one call of a form costs for one sequence and all heads of a layer.

    Attributes:
        seconds: measured on this machine; None where it was not (see `Report.timing`).
        flops: floating-point operations, by the form's own count.
        state: bytes that a stream must keep; None where the form does not stream.
    """

    seconds: float | None
    flops: float
    state: int | None


@dataclass(frozen=True)
class Timing:
    """On what the seconds of the costs were measured, or in a sentence why they were not."""

    machine: str
    threads: int
    refusal: str | None


@dataclass(frozen=True)
class Head:
    """One attention head.

    Attributes:
        kind: what the head is: the kind of the simplest form that fits it; None where none does (see `Report.kinds`).
        errors: by form; a form that does not apply to the layer is left out (see `Layer.refusals`).
        structure: statistics of the weights by name; None where one is not defined.
        bounds: lower bounds on the relative error of the weights, ||A - A'|| / ||A||, that no A' of the family can beat:
            {"kernel": {"16": 0.31, ...}, "hybrid": {...}} by the number of features; empty where not computed.
        views: what to draw.
    """

    kind: str | None
    errors: dict[str, FormError]
    structure: dict[str, float | None]
    bounds: dict[str, dict[str, float]]
    views: Views

    def error(self, form: str, metric: Metric = "raw") -> float:
        """The error of a form; infinite where it does not apply or the centred one is not defined."""
        value = getattr(self.errors[form], metric) if form in self.errors else None
        return float("inf") if value is None else float(value)

    def best(self, metric: Metric = "raw", among: Sequence[str] | None = None) -> tuple[str, float]:
        """(form, error) of the form with the least error; the first in order of those within 0.1 % of it."""
        errors = {form: self.error(form, metric) for form in (self.errors if among is None else among)}
        least = min(errors.values())
        return next((form, error) for form, error in errors.items() if error <= least + TIE)


@dataclass(frozen=True)
class Layer:
    """One call of one attention module.

    Attributes:
        module: the module's name in the model.
        call: which call of a shared module it is.
        role: "self" or "cross".
        causal: no query sees a later key.
        structured: the mask holds more than padding and causality.
        queries, keys: numbers of tokens.
        grid: cells in each dimension; one number for a text or a sound.
        special: class and register tokens before the grid; their rows are not measured.
        head_dim: dimension of q and k.
        kv_heads: key-value heads.
        extras: what the scores hold beside scaling q'k, such as "bias", "softcap", "sink".
        refusals: why a form does not apply to this layer, by form.
        costs: by form, and under "attention" what the layer's own softmax attention costs.
        heads: in order.
    """

    module: str
    call: int
    role: str
    causal: bool
    structured: bool
    queries: int
    keys: int
    grid: tuple[int, ...]
    special: int
    head_dim: int
    kv_heads: int
    extras: tuple[str, ...]
    refusals: dict[str, str]
    costs: dict[str, FormCost]
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class Section:
    """Everything measured at one length; `tokens` begin the sequence that the views show."""

    length: int
    fitted_sequences: int
    measured_sequences: int
    tokens: tuple[str, ...]
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Report:
    """What every attention head of a model is, measured on inputs that nothing was fitted to.

    Attributes:
        model: the name that the report carries.
        text: where the inputs came from.
        reproduction: the largest relative error of the captured computation against the model's own.
        forms: the forms compared, by name, in the order of the tables, simplest first.
        timing: on what the costs were measured.
        complete: False when measuring was interrupted, so that the sections hold fewer sequences than asked for.
        sections: one for each length.
    """

    model: str
    text: str
    reproduction: float
    forms: dict[str, FormInfo]
    timing: Timing
    complete: bool
    sections: tuple[Section, ...]

    def section(self, length: int | None = None) -> Section:
        """The section of a length; the first one unless given."""
        for section in self.sections:
            if length in (None, section.length):
                return section
        raise ArgumentError("length", f"one of {[section.length for section in self.sections]}", length)

    def __getitem__(self, at: tuple[int, int]) -> Head:
        """report[layer, head] at the first length."""
        return self.section().layers[at[0]].heads[at[1]]

    def heads(self, length: int | None = None) -> list[Head]:
        """All heads at a length, layer by layer."""
        return [head for layer in self.section(length).layers for head in layer.heads]

    def cheaper_forms(self) -> list[str]:
        """The forms that are no oracle."""
        return [name for name, form in self.forms.items() if not form.oracle]

    def summary(self, length: int | None = None, metric: Metric = "raw") -> dict[str, dict[str, int]]:
        """How many heads have an error of at most 5, 10 and 20 %: by form, "best" of the cheaper ones, "best of all"."""
        heads = self.heads(length)
        rows = {name: [head.error(name, metric) for head in heads] for name in self.forms}
        rows["best"] = [head.best(metric, self.cheaper_forms())[1] for head in heads]
        rows["best of all"] = [head.best(metric)[1] for head in heads]
        return {
            name: {f"{level:.0%}": sum(error <= level for error in errors) for level in LEVELS}
            for name, errors in rows.items()
        }

    def table(self, length: int | None = None) -> Table:
        """A layer x head map for the terminal."""
        from quadform.inspect import _terminal  # rich is loaded where a table is asked for, and not by every import

        return _terminal.head_map(self, length)

    def summary_table(self, length: int | None = None) -> Table:
        """`summary`, raw and centred, for the terminal."""
        from quadform.inspect import _terminal

        return _terminal.summary_table(self, length)

    def sentences(self, length: int | None = None) -> list[str]:
        """What the numbers at a length mean, in plain sentences."""
        from quadform.inspect import _summary

        return _summary.summarise(self, length)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, with the schema's name and version."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON, also written to `path` when given: whole, or not at all."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        if path is not None:
            write_whole(Path(path), text + "\n")
        return text

    def to_html(self, path: str | Path | None = None) -> str:
        """A self-contained page under 1 MB, also written to `path` when given: whole, or not at all."""
        from quadform.inspect import _html

        text = _html.render(self, TIE)
        if path is not None:
            write_whole(Path(path), text)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Report:
        """Reads what `to_json` made: a path, or the JSON text itself."""
        text = (
            source if isinstance(source, str) and source.lstrip().startswith("{") else Path(source).read_text("utf-8")
        )
        try:
            data = json.loads(text)
            schema = data.pop("schema", None)
            if schema != SCHEMA:
                raise ArgumentError("source", f"a report with schema {SCHEMA!r}", f"schema {schema!r}")
            return _report(data)
        except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ArgumentError("source", "the JSON of a report", f"{type(error).__name__}: {error}") from None


def _report(data: dict[str, Any]) -> Report:
    forms = {name: FormInfo(**form) for name, form in data.pop("forms").items()}
    sections = tuple(_section(section) for section in data.pop("sections"))
    return Report(**{**data, "forms": forms, "timing": Timing(**data.pop("timing")), "sections": sections})


def _section(data: dict[str, Any]) -> Section:
    layers = tuple(_layer(layer) for layer in data["layers"])
    return Section(**{**data, "tokens": tuple(data["tokens"]), "layers": layers})


def _layer(data: dict[str, Any]) -> Layer:
    parts = {
        "grid": tuple(data["grid"]),
        "extras": tuple(data["extras"]),
        "costs": {form: FormCost(**cost) for form, cost in data["costs"].items()},
        "heads": tuple(_head(head) for head in data["heads"]),
    }
    return Layer(**{**data, **parts})


def _head(data: dict[str, Any]) -> Head:
    views = data["views"]
    edges = [(int(i), int(j), float(weight)) for i, j, weight in views["edges"]]
    errors = {name: FormError(**error) for name, error in data["errors"].items()}
    return Head(**{**data, "errors": errors, "views": Views(**{**views, "edges": edges})})
