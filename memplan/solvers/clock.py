"""The time of a solve: how much is left, whether it is over, and parts of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import inf
from time import monotonic

_SHORTEST = 1e-9
"""Seconds that a time limit counts as at least when shares of it are taken."""


class Clock:
    """A time limit that began when this was made, and whether Ctrl-C ended the solve before it.

    begin, end: moments of `monotonic` at which it began and at which it is over.
    interrupted: Ctrl-C ended the search (`until_interrupted`); the answer is the best so far.
    """

    def __init__(self, seconds: float | None, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Start the clock.

        seconds: the time limit, None for none.
        cancelled: whether the answer is requested at once.
        """
        self.begin = monotonic()
        self.end = inf if seconds is None else self.begin + seconds
        self.interrupted = False
        self._cancelled = cancelled

    def begin_limit(self, seconds: float) -> None:
        """Let the clock begin now, with so many seconds: what has passed before does not count."""
        self.begin = monotonic()
        self.end = self.begin + seconds

    @property
    def left(self) -> float:
        """Seconds until the limit; inf without one, below 0 after it."""
        return self.end - monotonic()

    @property
    def limit(self) -> float | None:
        """The seconds that are left, as the time limit of something else; None without a limit."""
        return None if self.end == inf else max(0.0, self.left)

    @property
    def over(self) -> bool:
        """Tell whether the time is over."""
        return monotonic() >= self.end

    @property
    def expired(self) -> bool:
        """Tell whether to give the best so far: the time is over, or the answer is requested at once."""
        return self.interrupted or self.over or self._cancelled()

    def goes_on(self) -> bool:
        """Tell whether to go on: there is time left, and no answer is requested yet."""
        return not self.expired

    @property
    def share(self) -> float:
        """Share of the time limit that has passed: 0 without one, inf once the answer is requested."""
        if self.interrupted or self._cancelled():
            return inf
        # Divided by ∞ without a limit: 0.
        return (monotonic() - self.begin) / max(self.end - self.begin, _SHORTEST)

    @contextmanager
    def until_interrupted(self) -> Generator[None]:
        """End the block at Ctrl-C and go on after it: `interrupted` is set, so that nothing goes on."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True

    def raise_if_interrupted(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C ended the search: for a search that has found nothing.

        Nothing found is then no proof that there is nothing.
        """
        if self.interrupted:
            raise KeyboardInterrupt

    def part(self, share: float, most: float = inf) -> Clock:
        """Return a clock for a share of the time that is left, and at most so many seconds."""
        seconds = min(most, share * self.left)
        return Clock(None if seconds == inf else seconds, self._cancelled)
