"""quadform inspect: what each attention head of a pretrained model is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quadform._errors import ArgumentError
from quadform.inspect import Batch, Report, check_writable, inspect as inspect_model
from quadform.integrations.hugging_face import load_model, load_tokenizer, read_text, token_batches


def inspect(
    model: Annotated[
        str,
        typer.Argument(help="A Hugging Face directory, or an installed package that carries one.", show_default=False),
    ],
    text: Annotated[
        list[str],
        typer.Option(help="A text file, '-' for standard input, or 'python-docs'; repeat it for several documents."),
    ],
    lengths: Annotated[str, typer.Option(help="Tokens per sequence; several separated by commas.")] = "128",
    out: Annotated[Path, typer.Option(help="The HTML report to write.")] = Path("report.html"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the report as JSON; '-' prints it.", show_default=False)
    ] = None,
    sequences: Annotated[int, typer.Option(min=2, help="Sequences to measure, and as many to fit on.")] = 32,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads; on a busy machine a second one can make it ten times slower.")
    ] = 1,
) -> None:
    """Measure every attention head of a model on a text and report which cheaper form it could take, at what error."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported, which is below
    torch.set_num_threads(threads)
    sizes = _lengths(lengths)
    to_stdout = json_file is not None and str(json_file) == "-"
    check_writable("--out", out)
    if json_file is not None and not to_stdout:
        check_writable("--json", json_file)
    split = read_text(text)
    tokenizer = load_tokenizer(model)
    loaded = load_model(model)
    fit: list[Batch] = []
    measured: list[Batch] = []
    for size in sizes:
        _check_length(loaded, size)
        parts = token_batches(tokenizer, split, size, sequences)
        fit += parts[0]
        measured += parts[1]
    with _progress() as step:
        report = inspect_model(
            loaded,
            measured,
            fit=fit,
            name=model,
            text=split.source,
            labels=tokenizer.convert_ids_to_tokens,
            progress=step,
        )
    report.to_html(out)
    if json_file is not None and not to_stdout:
        report.to_json(json_file)
    _show(report, out, to_stdout)


def _show(report: Report, out: Path, to_stdout: bool) -> None:
    if to_stdout:
        print(report.to_json())
    console = Console(stderr=to_stdout)
    for section in report.sections:
        console.print(report.table(section.length))
        console.print(report.summary_table(section.length))
    console.print(f"Report: {out}", highlight=False)


def _lengths(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 8 for part in parts):
        raise ArgumentError("--lengths", "whole numbers of at least 8, separated by commas", repr(text))
    return sorted({int(part) for part in parts})


def _check_length(model: Any, length: int) -> None:
    longest = getattr(model.config, "max_position_embeddings", None)
    if isinstance(longest, int) and length > longest:
        raise ArgumentError("--lengths", f"at most {longest}, the model's number of positions", length)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking capture", total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)
