"""calibrate: the cost model's rates, measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from statistics import median

import torch
from torch import Tensor

from quadform._errors import QuadformError, Refused
from quadform.forms._load import Watch, crowded, unsteady
from quadform.forms._rates import Calibration, Rates, cache_file, read, remember, this_key, write

SIZE = 512
"""Rows and columns of the matrix product."""
COPIED = 64 * 2**20
"""Bytes of the tensor that is copied, more than a core's share of the caches."""
STEPS = 20
ROUNDS = 15
FEWEST = 5
BUDGET = 0.5
"""Seconds after which a slow machine is content with the fewest rounds."""
ATTEMPTS = 3

Timings = dict[str, list[float]]


def calibrate(*, force: bool = False) -> Calibration:
    """Measures the rates that "auto" and `explain` predict times with, and keeps them for this machine.

        seconds = max(flops / flops_per_second, bytes / bytes_per_second) + steps * seconds_per_step

    Medians of 15 interleaved repeats (5 on a slow machine), half a second or two in all: float32 products of 512 x 512
    matrices; copies of a 64 MiB tensor, bytes read and written; a chain of small attention steps. One calibration is kept
    for each CPU, version of torch and `torch.get_num_threads()`, in $QUADFORM_CACHE/calibration.json or the user's cache
    directory. Where there is one it is returned and nothing is measured. Later calls, also of other processes, choose
    their forms by it; until there is one they use static rates of a small CPU. What a form computes does not depend on
    the rates.

    Args:
        force: measure even where a calibration is kept, and replace a file that cannot be read.

    Errors: Refused, with the figures, after three attempts on a machine that other processes are using; QuadformError
    names a kept file that cannot be read, or that cannot be written.

    Reference:

        rates = qf.calibrate().rates
        seconds = max(flops / rates.flops_per_second, bytes / rates.bytes_per_second) + steps * rates.seconds_per_step
        assert seconds == qf.forms.Cost(flops, bytes, steps=steps).seconds
    """
    path, key = cache_file(), this_key()
    try:
        kept = read(path)
    except QuadformError:
        if not force:
            raise
        kept = []
    found = next((one for one in kept if one.key == key), None)
    if found is None or force:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found = Calibration(_measure(), *key, datetime.now(timezone.utc).date().isoformat())
            write(path, [one for one in kept if one.key != key] + [found])
        except OSError as error:
            raise QuadformError(
                f"{path} cannot be written ({error}); set QUADFORM_CACHE to a directory that can be"
            ) from None
    remember(found)
    return found


def trouble() -> str | None:
    """Why times measured now are not to be trusted, in a sentence; None where the machine is quiet. About 0.1 s."""
    product = _product()
    return _quiet(lambda: {"product": _repeat([product])[0]})[1]


def _measure() -> Rates:
    product, copy, chain = _product(), _copy(), _chain()

    def attempt() -> Timings:
        return dict(zip(("product", "copy", "chain"), _repeat([product, copy, chain]), strict=True))

    times, reason = _quiet(attempt)
    if reason is not None:
        raise Refused(f"this machine is not quiet enough to calibrate: {reason}")
    return Rates(
        flops_per_second=2 * SIZE**3 / median(times["product"]),
        bytes_per_second=2 * COPIED / median(times["copy"]),
        seconds_per_step=median(times["chain"]) / STEPS,
    )


def _quiet(measure: Callable[[], Timings]) -> tuple[Timings, str | None]:
    """The first of three attempts during which the machine was quiet; else the last one and what disturbed it."""
    for _ in range(ATTEMPTS):
        watch = Watch()
        times = measure()
        reason = crowded(watch.others()) or unsteady(times["product"])
        if reason is None:
            break
    return times, reason


def _repeat(tasks: list[Callable[[], object]]) -> list[list[float]]:
    """Seconds of each task in each round, the tasks taking turns; one round before them warms up."""
    begin = time.perf_counter()
    times: list[list[float]] = [[] for _ in tasks]
    with torch.inference_mode():
        for done in range(ROUNDS + 1):
            if done > FEWEST and time.perf_counter() - begin > BUDGET:
                break
            for task, its in zip(tasks, times, strict=True):
                start = time.perf_counter()
                task()
                its.append(time.perf_counter() - start)
    return [its[1:] for its in times]


def _product() -> Callable[[], Tensor]:
    a, b, out = (torch.full((SIZE, SIZE), 0.5, dtype=torch.float32, device="cpu") for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def _copy() -> Callable[[], Tensor]:
    source, target = (torch.full((COPIED,), i, dtype=torch.uint8, device="cpu") for i in (1, 2))
    return lambda: target.copy_(source)


def _chain() -> Callable[[], Tensor]:
    start = torch.full((4, 16, 16), 0.5, dtype=torch.float32, device="cpu")
    mask = torch.ones(16, 16, dtype=torch.bool, device="cpu").triu(1)

    def steps() -> Tensor:
        x = start
        for _ in range(STEPS):
            x = (x @ start.transpose(-1, -2)).masked_fill(mask, -torch.inf).softmax(-1) @ start
        return x

    return steps
