"""Whether other processes are using the machine, so that what is measured is not their work."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

import torch

SPREAD = 1.25
"""How many times longer the third quartile of repeats may be than the first."""
MINUTE = 60.0
_loaded = time.monotonic()


class Watch:
    """Counts the cores that other processes keep busy, from when it is made until `others` is asked."""

    def __init__(self) -> None:
        self._wall, self._busy, self._own = time.perf_counter(), busy_seconds(), time.process_time()

    def others(self) -> float:
        """Busy cores that are not this process's.

        On Linux from the kernel's own count, while watched; elsewhere the load of the last minute less this process's
        share of it; 0 where the system keeps neither.
        """
        now, busy = time.perf_counter(), busy_seconds()
        if busy is not None and self._busy is not None:
            return max(0.0, busy - self._busy - (time.process_time() - self._own)) / max(now - self._wall, 1e-9)
        if not hasattr(os, "getloadavg"):
            return 0.0
        own = time.process_time() / max(MINUTE, time.monotonic() - _loaded)
        return max(0.0, os.getloadavg()[0] - own)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_seconds() -> float | None:
    """How long this process's cores have computed since the machine started, all processes together; None if not kept.

    Time that a virtual machine's host took away counts as well.
    """
    try:
        lines = Path("/proc/stat").read_text("ascii").splitlines()
        tick, mine = os.sysconf("SC_CLK_TCK"), {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError, ValueError):
        return None
    rows = [line.split() for line in lines if line.startswith("cpu")]
    ours = [[int(value) for value in row[1:9]] for row in rows if row[0] in mine]
    # user, nice, system, idle, iowait, irq, softirq, steal: all but the two that wait
    return sum(sum(row) - sum(row[3:5]) for row in ours) / tick


def crowded(others: float) -> str | None:
    """Why a measurement beside that many busy cores is not to be trusted, in a sentence; None where it is.

    Half of the cores that this process leaves free may be busy, and half a core of its own.
    """
    count = cores()
    most = 0.5 * max(count - torch.get_num_threads(), 0) + 0.5
    if others <= most:
        return None
    return f"other processes keep {others:.1f} of {count} cores busy, and at most {most:.1f} may be while times are measured"


def unsteady(seconds: Sequence[float]) -> str | None:
    """Why repeats of the same work are not to be trusted, in a sentence; None where they are."""
    low, _, high = quantiles(seconds, n=4)
    if high <= SPREAD * low:
        return None
    return (
        f"a quarter of the repeats of one matrix product took less than {low * 1e3:.2f} ms and a quarter more than "
        f"{high * 1e3:.2f} ms, {high / low:.2f} times as long, and {SPREAD} times is the most while times are measured"
    )
