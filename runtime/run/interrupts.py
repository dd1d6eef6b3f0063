"""Ctrl-C while an iteration runs: it takes effect at its end, when weights and states are those after it."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def interrupts_at_the_end() -> Generator[None]:
    """The first Ctrl-C within waits until the end; a second one does not."""
    ours = current_thread() is main_thread()
    before = signal.getsignal(signal.SIGINT) if ours else None
    if not callable(before):
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            before(number, frame)
        came.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(came[0], None)
