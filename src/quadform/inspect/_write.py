"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from quadform._errors import ArgumentError


def check_writable(name: str, path: Path) -> None:
    """ArgumentError when a file cannot be written at `path`; called before work that takes long."""
    if path.is_dir():
        raise ArgumentError(name, "the name of a file", f"the directory {path}")
    if not path.parent.is_dir():
        raise ArgumentError(name, "a file in a directory that exists", str(path))
    if not os.access(path.parent, os.W_OK):
        raise ArgumentError(name, "a file in a directory that can be written to", str(path))


def write_whole(path: Path, text: str) -> None:
    """Writes a temporary sibling, flushes it to disk and renames it; a failure leaves what was there before."""
    path = path.resolve()
    sibling = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with sibling.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sibling.replace(path)
    finally:
        sibling.unlink(missing_ok=True)
