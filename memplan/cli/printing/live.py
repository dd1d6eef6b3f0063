"""The line on a command's work at the moment: phase, share done, time left, the best so far."""

from __future__ import annotations

from math import ceil
from time import monotonic

from rich.text import Text

from ..streams import CONTROLS

_SOON = 2.0
"""Seconds of counting before a time left is said."""
_MINUTES = 90.0
"""Seconds above which a time left is said in minutes."""


class Phase:
    """Place of what is shown among the phases of a command. total: 0 if it has one phase."""

    def __init__(self) -> None:
        self.number, self.total = 0, 0

    def begin(self, number: int, total: int) -> None:
        self.number, self.total = number, total

    def __str__(self) -> str:
        return f"{self.number} of {self.total}, " if self.total else ""


class Live:
    """The line. Other threads may read it at any time.

    line: what is being done. phase: of the command. limit: seconds after which it ends, None without one.
    """

    def __init__(self, line: str, phase: Phase | None = None, limit: float | None = None) -> None:
        self._line, self._phase, self._limit = line, phase or Phase(), limit
        self._best: object = ""
        self._done: int = 0
        self._total: int = 0
        self._name = ""
        self._start = self._since = monotonic()

    def report(self, line: str) -> None:
        """Replace what is being done; what was counted belonged to it."""
        self._line, self._done, self._total, self._name = line, 0, 0, ""

    def announce(self, best: object) -> None:
        """Note the best so far, which stays in the line, as `str` gives it at each moment."""
        self._best = best

    def count(self, done: int, total: int, name: str = "") -> None:
        """Note the number done, the total, and the last name. total: 0 if it is unknown."""
        if done <= self._done or total != self._total:  # another round
            self._since = monotonic()
        self._done, self._total, self._name = done, total, name

    def text(self) -> str:
        """Return the line as of now."""
        now = monotonic()
        limit = "" if self._limit is None else f" of {self._limit:.0f}"
        parts = [
            f"{now - self._start:.0f}{limit} s: {self._phase}{self._line}{self._count(now)}",
            str(self._best),
        ]
        return "; ".join(filter(None, parts))

    def __rich__(self) -> Text:
        return Text(self.text().translate(CONTROLS), no_wrap=True, overflow="ellipsis")

    def _count(self, now: float) -> str:
        done, total, name = self._done, self._total, self._name
        if not total:
            return f": {name}" if name else ""
        spent = now - self._since
        left = spent * (total - done) / done if done and spent >= _SOON and done < total else 0.0
        parts = [f"{done:,} of {total:,} ({done / total:.0%})", name, _time_left(left)]
        return f": {', '.join(filter(None, parts))}"


def _time_left(seconds: float) -> str:
    if not seconds:
        return ""
    return f"some {ceil(seconds)} s left" if seconds < _MINUTES else f"some {ceil(seconds / 60)} min left"
