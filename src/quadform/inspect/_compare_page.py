"""The page that `Comparison.to_html` writes: two maps, counts, and the heads that changed most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quadform.inspect._compare import BEST, DASH, METRICS, SHOWN, Comparison, Side, medians, name_of, shown
from quadform.inspect._glossary import TERMS
from quadform.inspect._html import MAP_CELLS, Detail, cell, embedded, fill, form_list, head_data, palette_css
from quadform.inspect._report import TIE
from quadform.inspect._summary import percent, summarise

if TYPE_CHECKING:
    from quadform.inspect._report import Report, Section


def render(comparison: Comparison) -> str:
    """The page."""
    forms, (section_a, section_b) = comparison.forms(), comparison.sections()
    order = list(forms)
    report_a, report_b = comparison.reports
    parts = [(report_a, comparison.a, section_a), (report_b, comparison.b, section_b)]
    kinds = list(
        dict.fromkeys(
            [
                *(form.kind for form in forms.values()),
                *(
                    head.kind
                    for _, _, section in parts
                    for layer in section.layers
                    for head in layer.heads
                    if head.kind
                ),
            ]
        )
    )
    payload = {
        "tie": TIE,
        "forms": form_list(forms),
        "kinds": kinds,
        "statistics": [],
        "terms": TERMS,
        "sections": [_data(section, order, kinds) for _, _, section in parts],
    }
    return fill(
        "compare.html.j2",
        {
            "title": _title(comparison.a, comparison.b),
            "sides": [_side(*part, order, letter) for part, letter in zip(parts, "AB", strict=True)],
            "forms": form_list(forms),
            "terms": TERMS,
            "palette": palette_css(len(forms)),
            "levels": list(dict.fromkeys(count.level for count in comparison.counts)),
            "metrics": METRICS,
            "rows": _rows(comparison),
            "changes": _changes(comparison, order),
            "total": len(comparison.changes),
            "refusal": comparison.refusal,
            "only": [name for name in order if name not in report_a.forms or name not in report_b.forms],
            "payload": embedded(payload),
        },
    )


def _title(a: Side, b: Side) -> str:
    if a.model == b.model and a.length != b.length:
        return f"{a.model} at {a.length} and at {b.length} tokens"
    return f"{name_of(a)} and {name_of(b)}"


def _data(section: Section, order: list[str], kinds: list[str]) -> dict[str, Any]:
    detail = Detail(0, 0, False)
    layers = [
        {"heads": [head_data(head, order, kinds, [], detail) for head in layer.heads]} for layer in section.layers
    ]
    return {"length": section.length, "layers": layers}


def _side(report: Report, side: Side, section: Section, order: list[str], letter: str) -> dict[str, Any]:
    cells = side.heads <= MAP_CELLS
    return {
        "letter": letter,
        "title": name_of(side),
        "text": side.text,
        "heads": side.heads,
        "complete": report.complete,
        "length": side.length,
        "width": max((len(layer.heads) for layer in section.layers), default=0),
        "sentences": summarise(report, side.length),
        "layers": [
            {"module": layer.module, "cells": [cell(head, report, order) for head in layer.heads] if cells else []}
            for layer in section.layers
        ],
    }


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One for each form: cells of (a, b, difference) by error and level, and both medians."""
    rows: dict[str, dict[str, Any]] = {}
    for count in comparison.counts:
        row = rows.setdefault(count.form, {"name": count.form, "label": BEST.get(count.form, count.form), "cells": {}})
        cells = row["cells"].setdefault(count.metric, [])
        cells.append((shown(count.a), shown(count.b), shown(count.difference, signed=True)))
    for name, row in rows.items():
        both = [medians(r, s, name) for r, s in zip(comparison.reports, (comparison.a, comparison.b), strict=True)]
        row["medians"] = {metric: (both[0][at], both[1][at]) for at, metric in enumerate(METRICS)}
    return list(rows.values())


def _changes(comparison: Comparison, order: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "layer": change.layer,
            "head": change.head,
            "forms": [order.index(change.form_a), order.index(change.form_b)],
            "raw": [percent(change.raw_a), percent(change.raw_b)],
            "centred": [_percent(change.centred_a), _percent(change.centred_b)],
            "difference": shown(round(100 * change.difference), signed=True),
        }
        for change in comparison.changes[:SHOWN]
    ]


def _percent(value: float | None) -> str:
    return DASH if value is None else percent(value)
