"""The report in a terminal."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from quadform.inspect._summary import median_error

if TYPE_CHECKING:
    from quadform.inspect._report import Metric, Report

WIDEST = 16
_STYLES = ((0.05, "bold reverse"), (0.10, "bold"), (0.20, ""), (float("inf"), "dim"))
_COLOURS = ("white", "yellow", "cyan", "blue", "green", "magenta", "red", "bright_yellow", "bright_black")


def head_map(report: Report, length: int | None) -> Table:
    """One row for each layer: the best form of each head and its error in per cent, or counts for wide layers."""
    section = report.section(length)
    width = max((len(layer.heads) for layer in section.layers), default=0)
    letters = ", ".join(f"{report.forms[name].letter} {name}" for name in report.cheaper_forms())
    title = f"{report.model} at {section.length} tokens: best cheaper form, held-out error in %"
    table = Table(
        title=title, caption=letters, box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, min_width=len(title)
    )
    table.add_column("layer", justify="right", no_wrap=True)
    if width > WIDEST:
        for name in ("heads", "≤ 5 %", "≤ 10 %", "≤ 20 %", "median error"):
            table.add_column(name, justify="right")
    else:
        for head in range(width):
            table.add_column(str(head), justify="right", no_wrap=True)
    for index, layer in enumerate(section.layers):
        best = [head.best("raw", report.cheaper_forms()) for head in layer.heads]
        if width > WIDEST:
            errors = [error for _, error in best]
            counts = [str(sum(error <= level for error in errors)) for level in (0.05, 0.10, 0.20)]
            table.add_row(str(index), str(len(best)), *counts, f"{statistics.median(errors):.1%}")
        else:
            table.add_row(str(index), *(_cell(report, form, error) for form, error in best))
    return table


def _cell(report: Report, form: str, error: float) -> Text:
    colour = _COLOURS[list(report.forms).index(form) % len(_COLOURS)]
    style = next(style for level, style in _STYLES if error <= level)
    return Text(f"{report.forms[form].letter} {100 * error:.0f}", style=f"{colour} {style}")


def summary_table(report: Report, length: int | None) -> Table:
    """How many heads fit which form within 5, 10 and 20 %, raw and centred, and the median error."""
    heads = len(report.heads(length))
    title = f"how many of {heads} heads fit which form within 5, 10 and 20 %"
    table = Table(title=title, box=box.SIMPLE, padding=0, pad_edge=False, min_width=len(title))
    table.add_column("", no_wrap=True)
    metrics: tuple[Metric, ...] = ("raw", "centred")
    for metric in metrics:
        for name in ("5 %", "10 %", "20 %", "median"):
            table.add_column(f"{metric}\n{name}", justify="right", no_wrap=True)
    counts = {metric: report.summary(length, metric) for metric in metrics}
    for name in counts["raw"]:
        label = {"best": "best cheaper form", "best of all": "best, with oracles"}.get(name, name)
        if name in report.forms and report.forms[name].oracle:
            label += " (oracle)"
        cells = []
        for metric in metrics:
            cells += [*map(str, counts[metric][name].values()), _median(report, name, metric, length)]
        table.add_row(label, *cells, end_section=name == list(report.forms)[-1])
    return table


def _median(report: Report, name: str, metric: Metric, length: int | None) -> str:
    error = median_error(report, name, metric, length)
    return "-" if error == float("inf") else f"{error:.0%}"
