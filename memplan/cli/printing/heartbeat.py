"""A line now and then while a command works, if there is no terminal that shows it live."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from ..streams import say
from .live import Live

EVERY_SECONDS = 10.0
"""Seconds between lines."""


@contextmanager
def heartbeat(live: Live) -> Generator[None]:
    """Print the line every EVERY_SECONDS while the block runs."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(EVERY_SECONDS):
            say(live.text())

    # a thread, since a solver may be silent for long; a daemon, so that it never keeps the process
    thread = threading.Thread(target=run, name="memplan-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
