"""Ctrl-C in the midst of a test."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def handled() -> Generator[None]:
    """Fail the test if Ctrl-C gets out of the block: pytest would end the whole run."""
    try:
        yield
    except KeyboardInterrupt:
        raise AssertionError("Ctrl-C was not handled: it came out as KeyboardInterrupt") from None


@contextmanager
def ctrl_c(after: float) -> Generator[None]:
    """Send Ctrl-C so many seconds after the block has begun, unless it ends before; see `handled`."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with handled():
            yield
    finally:
        timer.cancel()
