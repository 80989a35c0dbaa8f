"""quadform inspect: what each attention head of a pretrained model is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from quadform._errors import ArgumentError
from quadform.cli._inputs import Inputs, from_images, from_sounds, from_text
from quadform.inspect import Report, check_writable, compare as compare_reports, inspect as inspect_model, write_whole

SOURCES = "--text, --images or --sounds"


def inspect(
    model: Annotated[
        str | None,
        typer.Argument(help="A Hugging Face directory, or an installed package that carries one.", show_default=False),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A text file, '-' for standard input, or 'python-docs'; repeat it for several documents.",
            show_default=False,
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(help="An image, a folder of images, or 'sample'; may be repeated.", show_default=False),
    ] = None,
    sounds: Annotated[
        list[str] | None,
        typer.Option(help="A WAV file or a folder of them; may be repeated.", show_default=False),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Tokens per text; several separated by commas.")] = "128",
    out: Annotated[Path, typer.Option(help="The HTML report to write.")] = Path("report.html"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the report as JSON; '-' prints it.", show_default=False)
    ] = None,
    sequences: Annotated[int, typer.Option(min=2, help="Sequences to measure, and as many to fit on.")] = 32,
    bounds: Annotated[bool, typer.Option(help="Compute the lower bounds on kernels.")] = True,
    costs: Annotated[bool, typer.Option(help="Time each form on this machine.")] = True,
    partial: Annotated[
        bool, typer.Option("--partial", help="After Ctrl-C, report what has been measured until then.")
    ] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            help="Put two JSON reports side by side instead; two --lengths choose one of each.",
            metavar="A B",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads; on a busy machine a second one can make it ten times slower.")
    ] = 1,
) -> None:
    """Measure every attention head of a model and report which cheaper form it could take, at what error."""
    to_stdout = json_file is not None and str(json_file) == "-"
    check_writable("--out", out)
    if json_file is not None and not to_stdout:
        check_writable("--json", json_file)
    if compare is not None:
        _compare(compare, [] if lengths == "128" else _lengths(lengths), out, json_file)
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported, which is below
    torch.set_num_threads(threads)
    inputs = _inputs(model, text, images, sounds, lengths, sequences)
    with _progress() as step:
        report = inspect_model(
            inputs.model,
            inputs.measured,
            fit=inputs.fit,
            bounds=bounds,
            costs=costs,
            partial=partial,
            name=inputs.name,
            text=inputs.source,
            labels=inputs.labels,
            progress=step,
        )
    report.to_html(out)
    if json_file is not None and not to_stdout:
        report.to_json(json_file)
    _show(report, out, to_stdout)


def _inputs(
    model: str | None,
    text: list[str] | None,
    images: list[str] | None,
    sounds: list[str] | None,
    lengths: str,
    sequences: int,
) -> Inputs:
    if model is None:
        raise ArgumentError("MODEL", "a directory or a package, or --compare with two reports", "none")
    given = [name for name, value in (("--text", text), ("--images", images), ("--sounds", sounds)) if value]
    if len(given) != 1:
        raise ArgumentError(SOURCES, "one of them", " and ".join(given) or "none")
    if images:
        return from_images(model, images, sequences)
    if sounds:
        return from_sounds(model, sounds, sequences)
    return from_text(model, text or [], _lengths(lengths), sequences)


def _show(report: Report, out: Path, to_stdout: bool) -> None:
    if to_stdout:
        print(report.to_json())
    console = Console(stderr=to_stdout)
    for section in report.sections:
        console.print(report.table(section.length))
        console.print(report.summary_table(section.length))
        for sentence in report.sentences(section.length):
            console.print(f"  {sentence}", highlight=False)
    if not report.complete:
        console.print("Interrupted: fewer sequences than asked for were measured.")
    console.print(f"Report: {out}", highlight=False)


def _compare(paths: tuple[Path, Path], lengths: list[int], out: Path, json_file: Path | None) -> None:
    if len(lengths) > 2:
        raise ArgumentError("--lengths", "one or two of them beside --compare", lengths)
    a, b = (_report(path) for path in paths)
    length_a, length_b = (lengths[0], lengths[-1]) if lengths else (None, None)
    compared = compare_reports(a, b, length_a=length_a, length_b=length_b)
    compared.to_html(out)
    text = json.dumps(compared.to_dict(), indent=1, allow_nan=False)
    to_stdout = json_file is not None and str(json_file) == "-"
    if to_stdout:
        print(text)
    elif json_file is not None:
        write_whole(json_file, text + "\n")
    console = Console(stderr=to_stdout)
    console.print(compared.table())
    console.print(f"Report: {out}", highlight=False)


def _report(path: Path) -> Report:
    if not path.is_file():
        raise ArgumentError("--compare", "two JSON reports of quadform inspect", str(path))
    return Report.from_json(path)


def _lengths(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 8 for part in parts):
        raise ArgumentError("--lengths", "whole numbers of at least 8, separated by commas", repr(text))
    return sorted({int(part) for part in parts})


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking capture", total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)
