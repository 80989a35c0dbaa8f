"""quadform laws: every law of the operator, checked on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from quadform.laws import DTYPES, LAWS, Report, run_laws


def laws(
    cases: Annotated[
        int, typer.Option(help="Cases in all; every law, mixer and dtype gets one at least.", min=0)
    ] = 1500,
    seed: Annotated[int, typer.Option(help="Another seed draws other cases.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Check every law on generated cases: cases, worst error and tolerance by law, mixer, form and dtype.

    Exit code 1 and the smallest failing input where a law is broken.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<60.60}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("laws", total=None)

            def progress(done: int, total: int, what: str) -> None:
                bar.update(task, completed=done, total=total, description=what)

            report = run_laws(cases, seed, progress)
    finally:
        torch.set_num_threads(threads)
    if as_json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        out = Console(width=None if sys.stdout.isatty() else 150)
        out.print(_by_mixer(report))
        out.print(_by_law(report))
    for failure in report.failures:
        console.print(f"[red]{failure.law}[/] ({LAWS[failure.law].says}), {failure.form} form:", highlight=False)
        console.print(f"  error {failure.error:.3g} > {failure.tolerance:.3g}\n  {failure.witness}", markup=False)
    if report.unseen:
        shown = "; ".join(" / ".join(cell) for cell in report.unseen[:3])
        console.print(f"{len(report.unseen)} without a case: {shown}, ...", markup=False)
    if not report.ok:
        raise typer.Exit(1)


def _by_law(report: Report) -> Table:
    table = Table(
        "law", "form", "dtype", "cases", "worst error", "tolerance there", "", title=f"laws, seed {report.seed}"
    )
    table.caption = f"{report.cases} cases, {len(report.failures)} failures"
    for (law, form, dtype), entry in report.by_law().items():
        verdict = "ok" if entry.closest <= 1 else "BROKEN"
        table.add_row(law, form, dtype, str(entry.cases), f"{entry.worst:.1e}", f"{entry.tolerance:.1e}", verdict)
    return table


def _by_mixer(report: Report) -> Table:
    """One line for each mixer and form, cases and worst error in each dtype."""
    sums = report.by_mixer()
    table = Table("mixer", "form", *DTYPES, title="cases and worst error, all laws together")
    for subject, form in dict.fromkeys((s, f) for s, f, _ in sums):
        found = [sums.get((subject, form, dtype)) for dtype in DTYPES]
        table.add_row(subject, form, *("" if e is None else f"{e.cases}: {e.worst:.1e}" for e in found))
    return table
