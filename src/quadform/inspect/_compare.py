"""Two reports, or two lengths of one, side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quadform.inspect._summary import median_error, percent
from quadform.inspect._write import write_whole

if TYPE_CHECKING:
    from rich.table import Table

    from quadform.inspect._report import FormInfo, Head, Metric, Report, Section

SCHEMA = "quadform/compare/1"
METRICS: tuple[Metric, ...] = ("raw", "centred")
SHOWN = 24
"""How many of the heads that changed most are shown."""
DASH, MINUS = "\u2013", "\u2212"
BEST = {"best": "best cheaper form", "best of all": "best, oracles included"}


@dataclass(frozen=True)
class Side:
    """One of the two: which report and length, and how many heads it has."""

    model: str
    text: str
    length: int
    heads: int


@dataclass(frozen=True)
class Count:
    """How many heads a form, or the "best" or "best of all", fits within a level; None where a side lacks the form."""

    form: str
    metric: str
    level: str
    a: int | None
    b: int | None

    @property
    def difference(self) -> int | None:
        """b - a."""
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True)
class Change:
    """The best cheaper form of one head in both, and its errors; a centred one is None where it is not defined."""

    layer: int
    head: int
    form_a: str
    form_b: str
    raw_a: float
    raw_b: float
    centred_a: float | None
    centred_b: float | None

    @property
    def difference(self) -> float:
        """b - a of the centred error where both have one, else of the raw one."""
        if self.centred_a is None or self.centred_b is None:
            return self.raw_b - self.raw_a
        return self.centred_b - self.centred_a


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        a, b: the two sides.
        counts: for each form, error and level.
        changes: every head, those that changed most first; empty where the shapes differ.
        refusal: why heads are not compared one by one; None where they are.
    """

    a: Side
    b: Side
    counts: tuple[Count, ...]
    changes: tuple[Change, ...]
    refusal: str | None
    reports: tuple[Report, Report]

    def sections(self) -> tuple[Section, Section]:
        """The two sections compared."""
        return self.reports[0].section(self.a.length), self.reports[1].section(self.b.length)

    def forms(self) -> dict[str, FormInfo]:
        """The forms of both: those of `a` in their order, then what only `b` has."""
        one, other = (report.forms for report in self.reports)
        return {**one, **{name: form for name, form in other.items() if name not in one}}

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values, with the schema's name and version."""
        return {
            "schema": SCHEMA,
            "a": asdict(self.a),
            "b": asdict(self.b),
            "counts": [asdict(count) | {"difference": count.difference} for count in self.counts],
            "changes": [asdict(change) | {"difference": change.difference} for change in self.changes],
            "refusal": self.refusal,
        }

    def table(self) -> Table:
        """Counts of both and the difference, for the terminal."""
        from rich import box
        from rich.table import Table

        caption = f"A: {name_of(self.a)}, {self.a.heads} heads\nB: {name_of(self.b)}, {self.b.heads} heads"
        table = Table(title="how many heads fit which form", caption=caption, box=box.SIMPLE, padding=0, pad_edge=False)
        table.add_column("", no_wrap=True)
        table.add_column("error", no_wrap=True)
        for level in ("≤ 5 %", "≤ 10 %", "≤ 20 %"):
            for name in ("A", "B", "±"):
                table.add_column(f"{level if name == 'A' else ''}\n{name}", justify="right", no_wrap=True)
        rows: dict[tuple[str, str], list[str]] = {}
        for count in self.counts:
            cells = [shown(count.a), shown(count.b), shown(count.difference, signed=True)]
            rows.setdefault((count.form, count.metric), []).extend(cells)
        last = next(reversed(self.forms()), "")
        for (form, metric), row in rows.items():
            label = BEST.get(form, form) if metric == "raw" else ""
            table.add_row(label, metric, *row, end_section=form == last and metric == METRICS[-1])
        return table

    def to_html(self, path: str | Path | None = None) -> str:
        """A self-contained page, also written to `path` when given: whole, or not at all."""
        from quadform.inspect import _compare_page

        text = _compare_page.render(self)
        if path is not None:
            write_whole(Path(path), text)
        return text


def compare(a: Report, b: Report, *, length_a: int | None = None, length_b: int | None = None) -> Comparison:
    """Two models, or two lengths of one: counts within 5, 10 and 20 % and, where the shapes agree, each head's change.

    Args:
        a, b: the reports; the same one twice to compare two of its lengths.
        length_a, length_b: which section of each; the first one unless given.

    Returns:
        A Comparison, with `.table()`, `.to_dict()` and `.to_html(path)`.

    Raises:
        ArgumentError: a report has no section of that length.
    """
    sections = a.section(length_a), b.section(length_b)
    shapes = [[len(layer.heads) for layer in section.layers] for section in sections]
    sides = [
        Side(report.model, report.text, section.length, sum(shape))
        for report, section, shape in zip((a, b), sections, shapes, strict=True)
    ]
    refusal = None
    if shapes[0] != shapes[1]:
        refusal = f"A has {_shape(shapes[0])} and B {_shape(shapes[1])}, so their heads are not compared one by one"
    changes = [] if refusal else _changes(a, b, *sections)
    return Comparison(sides[0], sides[1], tuple(_counts(a, b, *sides)), tuple(changes), refusal, (a, b))


def _shape(heads: list[int]) -> str:
    return f"{len(heads)} layers with {sorted(set(heads))} heads"


def _counts(a: Report, b: Report, side_a: Side, side_b: Side) -> list[Count]:
    summaries = {metric: (a.summary(side_a.length, metric), b.summary(side_b.length, metric)) for metric in METRICS}
    names = [*dict.fromkeys([*a.forms, *b.forms]), *BEST]
    levels = list(summaries["raw"][0]["best"])
    return [
        Count(name, metric, level, *(summary.get(name, {}).get(level) for summary in summaries[metric]))
        for name in names
        for metric in METRICS
        for level in levels
    ]


def _changes(a: Report, b: Report, section_a: Section, section_b: Section) -> list[Change]:
    found = []
    for row, (one, other) in enumerate(zip(section_a.layers, section_b.layers, strict=True)):
        for column, (head_a, head_b) in enumerate(zip(one.heads, other.heads, strict=True)):
            form_a, raw_a = head_a.best("raw", a.cheaper_forms())
            form_b, raw_b = head_b.best("raw", b.cheaper_forms())
            centred = _centred(head_a, form_a), _centred(head_b, form_b)
            found.append(Change(row, column, form_a, form_b, raw_a, raw_b, *centred))
    return sorted(found, key=lambda change: -abs(change.difference))


def _centred(head: Head, form: str) -> float | None:
    return head.errors[form].centred if form in head.errors else None


def name_of(side: Side) -> str:
    """The model and the length."""
    return f"{side.model} at {side.length} tokens"


def shown(count: int | None, *, signed: bool = False) -> str:
    """A number, with its sign where asked; a dash for none."""
    if count is None:
        return DASH
    return f"{count:+d}".replace("-", MINUS) if signed and count else str(count)


def medians(report: Report, side: Side, form: str) -> tuple[str, str]:
    """Median raw and centred error of a form that the report has, as shown."""
    known = form in report.forms or form in BEST
    raw, centred = (
        percent(median_error(report, form, m, side.length)) if known and side.heads else DASH for m in METRICS
    )
    return raw, centred
