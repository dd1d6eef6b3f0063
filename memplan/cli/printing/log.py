"""--verbose: what the package logs about its decisions, on standard error."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from ..streams import say

_PACKAGE = "memplan"
LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
"""Levels without --verbose, with one and with two."""


class _Lines(logging.Handler):
    """Prints each record as a line: seconds since the command began, the module, the message."""

    def __init__(self) -> None:
        super().__init__()
        self._start = monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            seconds = monotonic() - self._start
            say(f"{seconds:.2f} s {record.name.removeprefix(f'{_PACKAGE}.')}: {record.getMessage()}")
        except Exception:
            self.handleError(record)


@contextmanager
def logged(verbosity: int) -> Generator[None]:
    """Print what the package logs while the block runs.

    verbosity: 0 for warnings, 1 for decisions, 2 for each step of a search too.
    """
    logger, lines = logging.getLogger(_PACKAGE), _Lines()
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(LEVELS[min(verbosity, len(LEVELS) - 1)])
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)
