"""The time of a solve: how much is left, whether it is over, and parts of it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic


class Clock:
    """A time limit that began when this was made.

    end: moment of `monotonic` at which it is over.
    """

    def __init__(self, seconds: float | None, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Start the clock.

        seconds: the time limit, None for none.
        cancelled: whether the answer is requested at once.
        """
        self.end = inf if seconds is None else monotonic() + seconds
        self._cancelled = cancelled

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
        return self.over or self._cancelled()

    def goes_on(self) -> bool:
        """Tell whether to go on: there is time left, and no answer is requested yet."""
        return not self.expired

    def part(self, share: float, most: float = inf) -> Clock:
        """Return a clock for a share of the time that is left, and at most so many seconds."""
        seconds = min(most, share * self.left)
        return Clock(None if seconds == inf else seconds, self._cancelled)
