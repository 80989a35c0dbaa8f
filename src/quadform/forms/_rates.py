"""How fast this machine computes, copies and starts small operations: static guesses, or what `calibrate` measured and kept."""

from __future__ import annotations

import json
import os
import platform
import sys
import warnings
from dataclasses import asdict, dataclass, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch

from quadform._errors import QuadformError

SCHEMA = "quadform/calibration/1"
FURTHEST = 1000.0
"""A rate this many times above or below the static one is a mistake and no machine."""
LARGEST = 1_000_000
"""Bytes of a file that is read at all."""


@dataclass(frozen=True)
class Rates:
    """What the cost model divides by.

    Attributes:
        flops_per_second: float32 matrix products.
        bytes_per_second: memory traffic beyond the caches, reads and writes.
        seconds_per_step: one small product, mask, softmax and product, whose time is that of starting them.
    """

    flops_per_second: float
    bytes_per_second: float
    seconds_per_step: float


STATIC = Rates(flops_per_second=6e10, bytes_per_second=1e10, seconds_per_step=2e-5)
"""A small CPU on one thread."""


@dataclass(frozen=True)
class Calibration:
    """Measured rates, and what they were measured on.

    Attributes:
        rates: the medians.
        machine: the name of the CPU.
        torch: version of torch.
        threads: `torch.get_num_threads()`; other thread counts have calibrations of their own.
        date: the day, such as "2026-01-31".
    """

    rates: Rates
    machine: str
    torch: str
    threads: int
    date: str

    @property
    def key(self) -> tuple[str, str, int]:
        """Whom the rates hold for: (machine, torch, threads)."""
        return self.machine, self.torch, self.threads

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def cache_file() -> Path:
    """$QUADFORM_CACHE/calibration.json; without that variable, the file in the user's cache directory.

    That is $XDG_CACHE_HOME/quadform or ~/.cache/quadform, on macOS ~/Library/Caches/quadform, on Windows
    %LOCALAPPDATA%/quadform/Cache.

    Errors: QuadformError where there is no home directory.
    """
    return _folder() / "calibration.json"


def _folder() -> Path:
    if given := os.environ.get("QUADFORM_CACHE"):
        return Path(given)
    windows = sys.platform == "win32"
    variable = os.environ.get("LOCALAPPDATA" if windows else "XDG_CACHE_HOME", "")
    if sys.platform != "darwin" and Path(variable).is_absolute():
        return Path(variable, "quadform", "Cache") if windows else Path(variable, "quadform")
    try:
        home = Path.home()
    except RuntimeError:
        raise QuadformError("there is no home directory for a cache; set QUADFORM_CACHE to a directory") from None
    if windows:
        return home / "AppData" / "Local" / "quadform" / "Cache"
    return home / "Library" / "Caches" / "quadform" if sys.platform == "darwin" else home / ".cache" / "quadform"


@cache
def machine() -> str:
    """The name of this machine's CPU."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass  # no Linux
    return platform.processor() or platform.machine() or "unknown"


def this_key() -> tuple[str, str, int]:
    """The key of a calibration of this process, as it is set now."""
    return machine(), torch.__version__, torch.get_num_threads()


_known: dict[int, Calibration | None] = {}


def calibration() -> Calibration | None:
    """The kept calibration of this machine, torch and thread count; None where there is none.

    The file is read once per thread count. Rates rank the forms and never change a result, so a file that cannot be read
    costs a computation nothing but a warning: it names the file, and the static rates are used.
    """
    threads = torch.get_num_threads()
    if threads not in _known:
        _known[threads] = None
        try:
            key = this_key()
            _known[threads] = next((kept for kept in read(cache_file()) if kept.key == key), None)
        except QuadformError as error:
            warnings.warn(f"{error}. Until then costs are predicted with static rates.", stacklevel=2)
    return _known[threads]


def rates() -> Rates:
    """The measured rates of this machine where `calibrate` has kept some, else the static ones."""
    kept = calibration()
    return STATIC if kept is None else kept.rates


def remember(found: Calibration) -> None:
    """Uses a calibration in this process from now on."""
    _known[found.threads] = found


def forget() -> None:
    """Makes the next question read the file again."""
    _known.clear()


def read(path: Path) -> list[Calibration]:
    """Every calibration in a file, none where there is no file.

    Errors: QuadformError names the file, what is wrong with it and how to replace it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError(f"it is larger than {LARGEST:,} bytes")
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"it is no object with schema {SCHEMA!r}")
        return [_calibration(entry) for entry in data["calibrations"]]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error) if type(error) in (ValueError, OSError) else f"{type(error).__name__}: {error}"
        raise QuadformError(
            f"{path} is not a calibration of this version of quadform: {reason}; delete it, or replace it with "
            "`quadform calibrate --force`"
        ) from None


def _calibration(entry: Any) -> Calibration:
    """A calibration from JSON values, each checked."""
    given = dict(entry)
    speeds = Rates(**given.pop("rates"))
    found = Calibration(speeds, **given)
    for field in fields(Rates):
        value, usual = getattr(speeds, field.name), getattr(STATIC, field.name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not usual / FURTHEST <= value <= usual * FURTHEST:  # refuses NaN as well
            raise ValueError(f"{field.name} is {value!r}, which no machine has")
    if not all(isinstance(text, str) for text in (found.machine, found.torch, found.date)):
        raise ValueError("machine, torch and date must be texts")
    if type(found.threads) is not int or found.threads < 1:
        raise ValueError(f"threads is {found.threads!r}")
    date.fromisoformat(found.date)
    return found


def write(path: Path, kept: list[Calibration]) -> None:
    """The file, whole or not at all: a temporary sibling, flushed to disk and renamed."""
    text = json.dumps({"schema": SCHEMA, "calibrations": [one.to_dict() for one in kept]}, indent=1, allow_nan=False)
    sibling = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with sibling.open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        sibling.replace(path)
    finally:
        sibling.unlink(missing_ok=True)
