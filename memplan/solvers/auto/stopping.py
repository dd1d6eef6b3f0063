"""When a portfolio ends that nobody gave a time limit, and what it says if nothing is proven by then.

Moves say how long a search is, and a busy machine takes several times as long for them. So there is a limit
by the clock as well, which grows with the graph. Searches know it from the beginning: they are cool by then.
"""

from __future__ import annotations

from ...graphs.units import duration
from ..clock import Clock
from ..incumbent import Incumbent

_LEAST_SECONDS, _MOST_SECONDS = 20.0, 120.0
_OPERATIONS_A_SECOND = 25.0

_LARGE = 10_000
"""Operations from which on the most seconds grow with them."""

_RESTART_SHARE = 0.25
"""Share of the limit after which no search begins elsewhere."""

_WORTH_SAYING = 1.0
"""Seconds without a faster schedule from which on they are reported."""


def default_seconds(operations: int) -> float:
    """Return the time limit of a graph of so many operations if none is requested."""
    most = _MOST_SECONDS * max(1.0, operations / _LARGE)
    return min(most, max(_LEAST_SECONDS, operations / _OPERATIONS_A_SECOND))


class Restarts:
    """Searches from elsewhere, one after the other, for as long as they help.

    The first begins if all others have left most of the time; each further one if there is a faster schedule
    since the one before it began.
    """

    def __init__(self, race: Incumbent, clock: Clock) -> None:
        self._race, self._clock = race, clock
        self._best: float | None = None

    def begin(self) -> bool:
        """Tell whether the next one is to begin."""
        before, self._best = self._best, self._race.best
        # `share` is ∞ once the answer is requested, so no search begins then.
        return self._clock.share <= _RESTART_SHARE and (before is None or self._best < before)


def ending(race: Incumbent) -> str:
    """Say for how long a search that has ended without a proof had found nothing."""
    return f"nothing faster in the last {duration(race.idle)}" if race.idle >= _WORTH_SAYING else ""
