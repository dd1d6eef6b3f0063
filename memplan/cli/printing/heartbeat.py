"""A line now and then while a command works, if there is no terminal that shows progress."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from ..streams import say

EVERY_SECONDS = 10.0
"""Seconds between lines."""


class Heartbeat:
    """The state that the next line shows.

    line: what is being done. news: what has happened since the last line, None if nothing has.
    """

    def __init__(self, line: str) -> None:
        self.line, self.news = line, None
        self._start = monotonic()

    line: str
    news: str | None

    def report(self, line: str) -> None:
        self.line = line

    def announce(self, news: str) -> None:
        self.news = news

    def count(self, done: int, total: int, name: str) -> None:
        self.news = f"{self.line}: {done} of {total}{f', {name}' if name else ''}"

    def beat(self) -> None:
        """Print the line."""
        news, self.news = self.news, None
        say(f"{monotonic() - self._start:.0f} s: {self.line if news is None else news}")


@contextmanager
def heartbeat(line: str, quiet: bool) -> Generator[Heartbeat]:
    """Print a line every EVERY_SECONDS while the block runs, unless quiet."""
    beating, over = Heartbeat(line), threading.Event()

    def run() -> None:
        while not over.wait(EVERY_SECONDS):
            beating.beat()

    # a thread, since a solver may be silent for long; a daemon, so that it never keeps the process
    thread = None if quiet else threading.Thread(target=run, name="memplan-heartbeat", daemon=True)
    if thread is not None:
        thread.start()
    try:
        yield beating
    finally:
        over.set()
        if thread is not None:
            thread.join()
