"""quadform reproduce: published experiments, at the size of a small machine."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from quadform._errors import ArgumentError
from quadform.inspect import write_whole
from quadform.integrations.pictures import save_curves, save_grey
from quadform.models import Entry
from quadform.reproduce import FULL, KINDS, QUICK, copy_task, draw_digits, sheet

SCHEMA = "quadform/reproduce/1"
PAPERS = ("linear-transformers",)


def reproduce(
    paper: Annotated[str, typer.Argument(help=f"One of: {', '.join(PAPERS)}.", show_default=False)],
    full: Annotated[bool, typer.Option("--full/--quick", help="Hours, or minutes.")] = False,
    out: Annotated[Path, typer.Option(help="A folder for results, logs and pictures.")] = Path("reproduced"),
    seed: Annotated[int, typer.Option(min=0)] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run the experiments of a paper and compare softmax attention, linear attention and an LSTM.

    linear-transformers (Katharopoulos et al. 2020): a copy task, and the generation of handwritten digits pixel by pixel.
    """
    if paper not in PAPERS:
        raise ArgumentError("paper", f"one of {', '.join(PAPERS)}", repr(paper))
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)
    settings = FULL if full else QUICK
    console = Console(stderr=True)

    def log(what: str, entry: Entry) -> None:
        measured = ", ".join(f"{name} {value:.4f}" for name, value in entry.measured.items())
        console.print(
            f"{what}: step {entry.step}, {entry.seconds:.0f} s, loss {entry.loss:.4f}, {measured}", highlight=False
        )

    results: dict[str, Any] = {
        "schema": SCHEMA,
        "paper": paper,
        "settings": asdict(settings),
        "seed": seed,
        "machine": f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "copy": copy_task(settings, seed, log),
    }
    _write(out, results)
    results["digits"], pictures = draw_digits(settings, seed, log)
    _write(out, results)
    _draw(out, results, pictures)
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        screen = Console(width=None if sys.stdout.isatty() else 120)
        screen.print(_copy_table(results))
        screen.print(_digits_table(results))
        screen.print(f"Results and pictures: {out}", highlight=False)


def _write(out: Path, results: dict[str, Any]) -> None:
    write_whole(out / "results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")


def _draw(out: Path, results: dict[str, Any], pictures: dict[str, torch.Tensor]) -> None:
    for name, images in pictures.items():
        save_grey(out / f"digits-{name}.png", 255 - sheet(images, 8), scale=4)
    copied, drawn = results["copy"], results["digits"]["models"]
    for name, logs, measure, y in (
        ("copy", copied, "accuracy", "accuracy on held-out copies"),
        ("digits", drawn, "bits", "bits per pixel, held out"),
    ):
        curves = {
            kind: ([e["seconds"] for e in logs[kind]["log"]], [e["measured"][measure] for e in logs[kind]["log"]])
            for kind in KINDS
        }
        save_curves(out / f"{name}.png", curves, x="seconds of training", y=y, title=f"{results['paper']}: {name}")


def _copy_table(results: dict[str, Any]) -> Table:
    table = Table(title="copy task: accuracy of the copied tokens")
    for name in ("model", "parameters", "best", "steps to 99 %", "seconds to 99 %"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for kind, found in results["copy"].items():
        steps, seconds = found["steps_to_target"], found["seconds_to_target"]
        table.add_row(
            kind, f"{found['parameters']:,}", f"{found['best_accuracy']:.2%}", "not reached" if steps is None else f"{steps:,}",
            "-" if seconds is None else f"{seconds:.0f}",
        )  # fmt: skip
    return table


def _digits_table(results: dict[str, Any]) -> Table:
    digits = results["digits"]
    table = Table(
        title=f"digits of {digits['pixels']} pixels; each pixel's own histogram: {digits['marginal_bits']:.3f} bits"
    )
    for name in ("model", "parameters", "steps", "bits per pixel", "images/s streamed", "images/s recomputed"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for kind, found in digits["models"].items():
        speed = found["images_per_second"]
        again = f"{speed['recomputed']:.3f}" if "recomputed" in speed else "-"
        table.add_row(
            kind, f"{found['parameters']:,}", f"{found['steps']:,}", f"{found['bits']:.3f}", f"{speed['streamed']:.3f}", again
        )  # fmt: skip
    return table
