"""Ctrl-C that ends a long measurement after the batch at hand."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether the user has asked to stop."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def graceful(enabled: bool) -> Iterator[Stop]:
    """Within it, the first Ctrl-C only sets `asked`; a second one interrupts. In other threads nothing changes."""
    stop = Stop()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
