"""The application object and the one place where an error becomes a line on stderr and an exit code."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Annotated

import typer

import quadform
import quadform.cli as package
from quadform._errors import QuadformError

INTERRUPTED = 130

app = typer.Typer(
    name="quadform",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"quadform {quadform.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Attention, convolution, message passing and recurrence: one operator, four forms."""


def register_verbs() -> None:
    """Adds every module `quadform.cli.<verb>` that defines a function `<verb>` to the application."""
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"quadform.cli.{info.name}")
            app.command(info.name)(getattr(module, info.name))


def main() -> None:
    """Runs the command line; expected errors are one line on stderr, never a traceback."""
    register_verbs()
    try:
        app()
    except SystemExit as stop:
        # Typer turns Ctrl-C into this exit code without a word.
        if stop.code == INTERRUPTED:
            print("quadform: interrupted", file=sys.stderr)
        raise
    except KeyboardInterrupt:
        print("quadform: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except (QuadformError, OSError, ValueError) as error:
        print(f"quadform: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
