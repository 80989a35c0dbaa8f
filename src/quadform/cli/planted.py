"""quadform planted: does the inspector name heads whose kind is known?"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from quadform._errors import ArgumentError
from quadform.inspect import check_writable, write_whole
from quadform.inspect.planted import LEVELS, Confusion, Planted, generate, load, name_all, page, save

Heads = Callable[[float], Sequence[Planted]]


def planted(
    data: Annotated[
        Path | None,
        typer.Option(help="Heads from this file; those of seed 0 unless given.", show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many sets to make and name: seeds 0, 1, ...")] = 1,
    write: Annotated[
        Path | None, typer.Option(help="Write the set of seed 0 to this file and name nothing.", show_default=False)
    ] = None,
    page_file: Annotated[
        Path | None, typer.Option("--page", help="Also write the result as a Markdown page.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name planted heads, whose kind is known, and print which kind was called what at each level of noise.

    Exit code 1 when a head is not named as planted at a noise of at most 0.1, or a mixed head is named.
    """
    if data is not None and (seeds > 1 or write is not None):
        raise ArgumentError("--data", "neither --seeds nor --write beside it", str(data))
    if write is not None:
        save(write)
        return
    if page_file is not None:
        check_writable("--page", page_file)
    confusion = _name([lambda noise: load(data, noise)] if data is not None else [_seed(at) for at in range(seeds)])
    if page_file is not None:
        what, said = ("seed 0", "") if seeds == 1 else (f"seeds 0 to {seeds - 1}", f" --seeds {seeds}")
        source, option = (data.name, f" --data {data.name}") if data is not None else (what, said)
        write_whole(page_file, page(confusion, source, f"quadform planted{option} --page {page_file.name}"))
    if as_json:
        print(json.dumps(confusion.to_dict(), indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 150).print(_table(confusion))
    for head in confusion.wrong:
        named = head.name or "none"
        print(f"{head.head} ({head.kind}) at noise {head.noise:g} is called {named}", file=sys.stderr)
    if confusion.wrong:
        raise typer.Exit(1)


def _seed(seed: int) -> Heads:
    return lambda noise: list(generate(seed, noise).values())


def _name(sets: Sequence[Heads]) -> Confusion:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("naming", total=len(sets) * len(LEVELS) * len(sets[0](0.0)))
            return name_all(sets, progress=lambda: bar.advance(task))
    finally:
        torch.set_num_threads(threads)


def _table(confusion: Confusion) -> Table:
    table = Table("planted", "noise", title="what planted heads are called")
    for name in confusion.columns():
        table.add_column(name, justify="right")
    before = None
    for (kind, noise), row in confusion.rows().items():
        if before not in (None, kind):
            table.add_section()
        table.add_row("" if kind == before else kind, f"{noise:g}", *(str(count or "") for count in row.values()))
        before = kind
    wrong = len(confusion.wrong)
    table.caption = f"{len(confusion.found)} heads; {wrong} wrong at a noise of at most 0.1, or mixed and named"
    return table
