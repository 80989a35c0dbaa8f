"""The report as one self-contained page: the templates are in page/, everything they show is prepared here."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quadform.inspect._glossary import KEY, TERMS, label, unit
from quadform.inspect._png import png
from quadform.inspect._structure import STRUCTURE
from quadform.inspect._summary import median_error, summarise
from quadform.inspect._views import Views

if TYPE_CHECKING:
    from quadform.inspect._report import FormInfo, Head, Layer, Report, Section

LIMIT = 1_000_000
ACCENT = (47, 111, 208)
PALETTE = ("#8a8f98", "#e69f00", "#56b4e9", "#0072b2", "#009e73", "#cc79a7", "#d55e00", "#f0e442", "#4a4f57", "#8f5a2b")
"""Okabe and Ito's colours, which colour-blind readers tell apart, greys and a brown; by the order of the forms."""
PAPERS = {"light": "#ffffff", "dark": "#15181c"}
SHARES = (1.0, 0.72, 0.4, 0.13)
"""How much of a form's colour a cell of the map has: within 5 %, 10 %, 20 %, and beyond."""
MAP_CELLS = 1500
"""A page with more heads than this has its map drawn by the script alone."""


@dataclass(frozen=True)
class Detail:
    """How much of each head the page holds: side of the matrix, edges of the graph, structure and bounds."""

    side: int
    edges: int
    numbers: bool = True


DETAILS = (Detail(64, 40), Detail(32, 24), Detail(16, 12), Detail(8, 6), Detail(0, 0), Detail(0, 0, False))
"""The first that keeps the page below `LIMIT` is used."""


def render(report: Report, tie: float) -> str:
    """The page, below `LIMIT` bytes; large models get coarser pictures, and none where even those are too many."""
    page = ""
    for detail in DETAILS:
        if detail is not DETAILS[-1] and _estimate(report, detail) > LIMIT:
            continue
        page = fill("report.html.j2", _context(report, tie, detail))
        if len(page.encode()) < LIMIT:
            break
    return page


def fill(template: str, context: dict[str, Any]) -> str:
    """A template of page/, filled."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # 60 ms, which no other import of quadform needs

    environment = Environment(
        loader=PackageLoader("quadform.inspect", "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(template).render(context)


def embedded(data: dict[str, Any]) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", " ")


def palette_css(forms: int) -> str:
    """Rules .f0.b1 ... for each form and share, in both schemes, with the ink that contrasts most."""
    rules = {
        scheme: "".join(
            f".f{form}.b{band}{{--bg:{shade};--fg:{ink(shade)}}}"
            for form in range(forms)
            for band, share in enumerate(SHARES, 1)
            for shade in [mix(PALETTE[form % len(PALETTE)], paper, share)]
        )
        for scheme, paper in PAPERS.items()
    }
    return f"{rules['light']}\n@media screen and (prefers-color-scheme:dark){{{rules['dark']}}}"


def mix(colour: str, paper: str, share: float) -> str:
    """`share` of a colour on paper."""
    pairs = zip(_channels(colour), _channels(paper), strict=True)
    return "#" + "".join(f"{round(share * top + (1 - share) * below):02x}" for top, below in pairs)


def ink(background: str) -> str:
    """Near-black or white: the one that contrasts more, by WCAG's ratio."""
    light = _luminance(background) + 0.05
    return "#0d1014" if light / (_luminance("#0d1014") + 0.05) >= 1.05 / light else "#ffffff"


def _channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in _channels(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def form_list(forms: dict[str, FormInfo]) -> list[dict[str, Any]]:
    """What templates and scripts know of the forms, in order."""
    return [{"name": name, "index": index, **vars(form)} for index, (name, form) in enumerate(forms.items())]


def _kinds(report: Report) -> list[str]:
    """Every kind that a form or a head has."""
    heads = (head.kind for section in report.sections for layer in section.layers for head in layer.heads)
    return list(dict.fromkeys([*(form.kind for form in report.forms.values()), *(kind for kind in heads if kind)]))


def _statistics(report: Report) -> list[dict[str, Any]]:
    names = (
        name
        for section in report.sections
        for layer in section.layers
        for head in layer.heads[:1]
        for name in head.structure
    )
    unique = list(dict.fromkeys(names))
    key = set(KEY) if set(KEY) & set(unique) else set(unique[: len(KEY)])
    return [
        {"name": name, "label": label(name), "unit": unit(name), "meaning": STRUCTURE.get(name, ""), "key": name in key}
        for name in unique
    ]


def _context(report: Report, tie: float, detail: Detail) -> dict[str, Any]:
    kinds, statistics = _kinds(report), _statistics(report)
    payload = {
        "model": report.model,
        "tie": tie,
        "forms": form_list(report.forms),
        "kinds": kinds,
        "statistics": statistics,
        "terms": TERMS,
        "timing": vars(report.timing),
        "sections": [_section_data(report, section, kinds, statistics, detail) for section in report.sections],
    }
    heads = sum(len(layer.heads) for section in report.sections for layer in section.layers)
    return {
        "report": report,
        "forms": form_list(report.forms),
        "statistics": statistics,
        "terms": TERMS,
        "palette": palette_css(len(report.forms)),
        "sections": [_section(report, section, heads <= MAP_CELLS) for section in report.sections],
        "payload": embedded(payload),
    }


def _section(report: Report, section: Section, cells: bool) -> dict[str, Any]:
    """What the page shows of a section before any script runs."""
    raw, centred = report.summary(section.length), report.summary(section.length, "centred")
    heads = len(report.heads(section.length))
    return {
        "length": section.length,
        "fitted": section.fitted_sequences,
        "measured": section.measured_sequences,
        "heads": heads,
        "structured": [layer.module for layer in section.layers if layer.structured],
        "width": max((len(layer.heads) for layer in section.layers), default=0),
        "sentences": summarise(report, section.length),
        "rows": [
            {
                "name": name,
                "raw": raw[name],
                "centred": centred[name],
                "medians": [
                    _whole(median_error(report, name, metric, section.length)) for metric in ("raw", "centred")
                ],
            }
            for name in raw
        ]
        if heads
        else [],
        "layers": [
            {"module": _module(layer), "cells": [cell(head, report) for head in layer.heads] if cells else []}
            for layer in section.layers
        ],
    }


def cell(head: Head, report: Report, order: list[str] | None = None) -> dict[str, Any]:
    """A cell of the map before any script runs; the script paints the same for the other choices."""
    name, error = head.best("raw", report.cheaper_forms())
    band = 1 + sum(error > level for level in (0.05, 0.10, 0.20))
    shown = "\u2013" if error == float("inf") else f"{100 * error:.0f}"
    return {
        "form": (order or list(report.forms)).index(name),
        "letter": report.forms[name].letter,
        "error": shown,
        "band": band,
    }


def _whole(value: float) -> str:
    return "\u2013" if value == float("inf") else f"{100 * value:.0f} %"


def _module(layer: Layer) -> str:
    return layer.module + (f" (call {layer.call + 1})" if layer.call else "")


def _section_data(
    report: Report, section: Section, kinds: list[str], statistics: list[dict[str, Any]], detail: Detail
) -> dict[str, Any]:
    return {
        "length": section.length,
        "tokens": section.tokens,
        "layers": [
            {
                "module": _module(layer),
                "role": layer.role,
                "causal": layer.causal,
                "structured": layer.structured,
                "queries": layer.queries,
                "keys": layer.keys,
                "grid": layer.grid,
                "special": layer.special,
                "dim": layer.head_dim,
                "groups": layer.kv_heads,
                "extras": layer.extras,
                "refusals": layer.refusals,
                "costs": {name: [_digits(c.seconds), _digits(c.flops), c.state] for name, c in layer.costs.items()},
                "heads": [head_data(head, list(report.forms), kinds, statistics, detail) for head in layer.heads],
            }
            for layer in section.layers
        ],
    }


def head_data(
    head: Head, forms: list[str], kinds: list[str], statistics: list[dict[str, Any]], detail: Detail
) -> dict[str, Any]:
    """A head for the script; errors and bounds in units of 0.01 %, null where there is none."""
    errors = [head.errors.get(name) for name in forms]
    data: dict[str, Any] = {
        "e": [None if error is None else _parts(error.raw) for error in errors],
        "c": [None if error is None else _parts(error.centred) for error in errors],
        "k": kinds.index(head.kind) if head.kind is not None else -1,
    }
    if detail.numbers:
        data["s"] = [_digits(head.structure.get(statistic["name"])) for statistic in statistics]
        data["b"] = {
            family: {count: _parts(value) for count, value in row.items()} for family, row in head.bounds.items() if row
        }
    if detail.side:
        views = head.views
        data["v"] = {
            "peak": views.peak,
            "png": _picture(views, detail.side),
            "kernel": _levels(views.kernel),
            "top": max(views.kernel, default=0.0),
            "reach": views.reach,
            "edges": views.edges[: detail.edges],
            "share": views.edge_share,
            "far": [views.distances, views.beyond_past, views.beyond_future],
        }
    return data


def _levels(values: list[float]) -> str:
    """Base64 of 16-bit numbers, big end first: 65535 * sqrt(value / largest value)."""
    top = max(values, default=0.0) or 1.0
    packed = b"".join(round(65535 * (max(0.0, value) / top) ** 0.5).to_bytes(2, "big") for value in values)
    return base64.b64encode(packed).decode()


def _estimate(report: Report, detail: Detail) -> float:
    """Bytes that the heads take on the page, from a sample of them: rendering a page only to drop it is slow."""
    total, kinds, statistics = 0.0, _kinds(report), _statistics(report)
    for section in report.sections:
        heads = [head for layer in section.layers for head in layer.heads]
        part = heads[:: max(1, len(heads) // 16)]
        made = (head_data(head, list(report.forms), kinds, statistics, detail) for head in part)
        total += len(heads) * sum(len(embedded(data)) for data in made) / max(1, len(part))
    return total


def _picture(views: Views, side: int) -> str:
    """Base64 of a PNG; cells are merged by their mean weight when there are more than `side`."""
    levels = base64.b64decode(views.matrix)
    step = -(-views.side // side)
    if step == 1:
        return base64.b64encode(png(levels, views.side, ACCENT)).decode()
    size = -(-views.side // step)
    sums, counts = [0.0] * (size * size), [0] * (size * size)
    for at, level in enumerate(levels):
        merged = at // views.side // step * size + at % views.side // step
        sums[merged] += level * level
        counts[merged] += 1
    mean = bytes(int((total / count) ** 0.5) for total, count in zip(sums, counts, strict=True))
    return base64.b64encode(png(mean, size, ACCENT)).decode()


def _parts(value: float | None) -> int | None:
    """Units of 0.01 %."""
    return None if value is None else round(10_000 * min(value, 1e6))


def _digits(value: float | None) -> float | None:
    """Three significant digits."""
    return None if value is None else float(f"{value:.3g}")
