"""Times of a command's phases: one line for a command that took more than twice its time limit."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from .printing.figures import duration
from .printing.output import Output

_SHARE = 0.05
"""Share of the whole below which a phase is not named."""


class Phases:
    """Clock of a command's phases. seconds: of each phase, by its name, in order."""

    def __init__(self) -> None:
        self._begin, self._latest = monotonic(), dict[str, float]()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Generator[None]:
        begin = monotonic()
        try:
            yield
        finally:
            self._latest[name] = monotonic() - begin
            self.seconds[name] = self.seconds.get(name, 0.0) + self._latest[name]

    def divide(self, name: str, first: float, rest: str) -> None:
        """Split the latest phase of a name: its first seconds keep the name, the rest is another phase."""
        # The latest alone: with --split the phase is entered once per graph.
        over = max(0.0, self._latest[name] - first)
        self.seconds[rest] = self.seconds.get(rest, 0.0) + over
        self.seconds[name] -= over

    def tell(self, limit: float | None, output: Output) -> None:
        if (line := self.line(limit)) is not None:
            output.note(line)

    def line(self, limit: float | None) -> str | None:
        """Return one line on what took the time.

        None unless the command has taken more than twice the limit, which holds for the search alone.
        """
        took = monotonic() - self._begin
        # Up to twice the limit the user expects: bounds and validation come after the search.
        if limit is None or took <= 2 * limit:
            return None
        phases = {**self.seconds, "all else": took - sum(self.seconds.values())}
        parts = [
            f"{name} {duration(seconds)}"
            for name, seconds in sorted(phases.items(), key=lambda part: -part[1])
            if seconds >= _SHARE * took
        ]
        return (
            f"took {duration(took)} in all, the time limit of {duration(limit)} is for the search alone: "
            f"{', '.join(parts)}"
        )
