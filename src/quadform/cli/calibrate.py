"""quadform calibrate: measure the rates that forms are chosen by."""

from __future__ import annotations

import json
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from quadform.forms import STATIC, Calibration, cache_file, calibrate as measure


def calibrate(
    force: Annotated[
        bool, typer.Option("--force", help="Measure again, and replace a file that cannot be read.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads to calibrate for; torch's own number unless given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how fast this machine computes, copies and starts small operations, and keep it for choosing forms."""
    if threads is not None:
        torch.set_num_threads(threads)
    found = measure(force=force)
    if as_json:
        print(json.dumps({**found.to_dict(), "file": str(cache_file())}, indent=2))
        return
    console = Console()
    console.print(_table(found))
    console.print(f"File: {cache_file()}", highlight=False, soft_wrap=True)


def _table(found: Calibration) -> Table:
    table = Table(title=f"{found.machine}, {found.threads} thread{'s' if found.threads > 1 else ''}, {found.date}")
    table.add_column("rate")
    table.add_column("measured", justify="right")
    table.add_column("static", justify="right")
    here = found.rates
    for name, unit, measured, static in (
        ("matrix products", "GFLOP/s", here.flops_per_second / 1e9, STATIC.flops_per_second / 1e9),
        ("memory traffic", "GB/s", here.bytes_per_second / 1e9, STATIC.bytes_per_second / 1e9),
        ("small step", "µs", here.seconds_per_step * 1e6, STATIC.seconds_per_step * 1e6),
    ):
        table.add_row(name, f"{measured:.1f} {unit}", f"{static:.1f} {unit}")
    return table
