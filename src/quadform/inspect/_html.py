"""The report as one self-contained page: the template is report.html.j2, everything it shows is prepared here."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from quadform.inspect._png import png
from quadform.inspect._structure import STRUCTURE
from quadform.inspect._terminal import median_error
from quadform.inspect._views import Views

if TYPE_CHECKING:
    from quadform.inspect._report import Head, Report, Section

LIMIT = 1_000_000
PALETTE = ("#8a8f98", "#e69f00", "#56b4e9", "#0072b2", "#009e73", "#cc79a7")
"""Okabe and Ito's colours, which colour-blind readers tell apart; by the order of the forms."""
DARK = ("#0072b2",)
"""Colours that need white text."""
ACCENT = (47, 111, 208)
_DETAILS = ((64, 40), (32, 24), (16, 12), (8, 6), (0, 0))
"""(side of the matrix view, edges of the graph view): the first that keeps the page below `LIMIT` is used."""


def render(report: Report, tie: float) -> str:
    """The page, below `LIMIT` bytes; large models get coarser pictures, and none where even those are too many."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # 60 ms, which no other import of quadform needs

    environment = Environment(
        loader=PackageLoader("quadform.inspect", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    template = environment.get_template("report.html.j2")
    page = ""
    for side, edges in _DETAILS:
        if side and _estimate(report, side, edges) > LIMIT:
            continue
        page = template.render(_context(report, tie, side, edges))
        if len(page.encode()) < LIMIT:
            break
    return page


def _estimate(report: Report, side: int, edges: int) -> float:
    """Bytes that the heads take on the page, from a sample of them: rendering a page only to drop it is slow."""
    total = 0.0
    for section in report.sections:
        heads = [head for layer in section.layers for head in layer.heads]
        sample = heads[:: max(1, len(heads) // 16)]
        size = sum(len(json.dumps(_head(head, side, edges), separators=(",", ":"))) for head in sample)
        total += len(heads) * (size / max(1, len(sample)) + 60)
    return total


def _context(report: Report, tie: float, side: int, edges: int) -> dict[str, Any]:
    forms = [
        {
            "name": name,
            "index": index,
            "colour": PALETTE[index % len(PALETTE)],
            "dark": PALETTE[index % len(PALETTE)] in DARK,
            **vars(form),
        }
        for index, (name, form) in enumerate(report.forms.items())
    ]
    payload = {
        "forms": forms,
        "structure": STRUCTURE,
        "tie": tie,
        "sections": [_section_data(section, side, edges) for section in report.sections],
    }
    return {
        "report": report,
        "forms": forms,
        "sections": [_section(report, section) for section in report.sections],
        "payload": json.dumps(payload, separators=(",", ":")).replace("<", "\\u003c"),
    }


def _section(report: Report, section: Section) -> dict[str, Any]:
    raw, centred = report.summary(section.length), report.summary(section.length, "centred")
    return {
        "length": section.length,
        "fitted": section.fitted_sequences,
        "measured": section.measured_sequences,
        "heads": len(report.heads(section.length)),
        "causal": sum(layer.causal for layer in section.layers),
        "structured": [layer.module for layer in section.layers if layer.structured],
        "width": max((len(layer.heads) for layer in section.layers), default=0),
        "headline": [(level, raw["best"][level]) for level in raw["best"]],
        "rows": [
            {
                "name": name,
                "raw": raw[name],
                "centred": centred[name],
                "medians": [median_error(report, name, metric, section.length) for metric in ("raw", "centred")],
            }
            for name in raw
        ],
        "layers": [
            {"module": layer.module, "call": layer.call, "cells": [_cell(head, report) for head in layer.heads]}
            for layer in section.layers
        ],
    }


def _cell(head: Head, report: Report) -> dict[str, Any]:
    """What the map shows before any script runs; report.js paints the same for the other choices."""
    name, error = head.best("raw", report.cheaper_forms())
    band = 1 + sum(error > level for level in (0.05, 0.10, 0.20))
    return {"form": list(report.forms).index(name), "error": f"{100 * error:.0f}", "band": band}


def _section_data(section: Section, side: int, edges: int) -> dict[str, Any]:
    return {
        "length": section.length,
        "tokens": section.tokens,
        "layers": [
            {
                "module": layer.module + (f" (call {layer.call + 1})" if layer.call else ""),
                "causal": layer.causal,
                "heads": [_head(head, side, edges) for head in layer.heads],
            }
            for layer in section.layers
        ],
    }


def _head(head: Head, side: int, edges: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "errors": [[_round(error.raw), _round(error.centred)] for error in head.errors.values()],
        "structure": [_round(value) for value in head.structure.values()],
    }
    if side:
        views = head.views
        data |= {
            "peak": views.peak,
            "png": _picture(views, side),
            "kernel": views.kernel,
            "edges": views.edges[:edges],
            "share": views.edge_share,
            "distances": views.distances,
            "past": views.beyond_past,
            "future": views.beyond_future,
        }
    return data


def _picture(views: Views, side: int) -> str:
    """Base64 of a PNG; cells are merged by their mean weight when there are more than `side`."""
    levels = base64.b64decode(views.matrix)
    step = -(-views.side // side)
    if step == 1:
        return base64.b64encode(png(levels, views.side, ACCENT)).decode()
    size = -(-views.side // step)
    sums, counts = [0.0] * (size * size), [0] * (size * size)
    for at, level in enumerate(levels):
        cell = at // views.side // step * size + at % views.side // step
        sums[cell] += level * level
        counts[cell] += 1
    merged = bytes(int((total / count) ** 0.5) for total, count in zip(sums, counts, strict=True))
    return base64.b64encode(png(merged, size, ACCENT)).decode()


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
