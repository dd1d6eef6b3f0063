"""A race between schedules and lower bounds: which solver found what when, and the optimality gap.

A portfolio's members report what they find, bounds alongside what they prove; each may ask for the gap, and
end. What a user sees of a search under way, and a plot of it, is this history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from threading import Lock
from time import monotonic

from ..graphs.units import duration
from .clock import Clock

_log = logging.getLogger(__name__)

_SAME = 1e-9
"""The relative difference below which a time or a bound counts as the same."""

PROVEN = 1e-6
"""The relative gap up to which a schedule counts as the fastest: bounds are rounded down."""


@dataclass(frozen=True)
class IncumbentState:
    """Incumbent and bound at one moment.

    elapsed: seconds since the start.
    best: seconds of the fastest schedule, ∞ before the first.
    bound: no schedule takes fewer seconds.
    who: the solver or bound that reported it.
    """

    elapsed: float
    best: float
    bound: float
    who: str

    @property
    def gap(self) -> float:
        """Relative optimality gap: (best − bound) / best; ∞ before the first schedule or the first bound."""
        return gap(self.best, self.bound)


def gap(best: float, bound: float) -> float:
    """Return the share of `best` seconds that is not proven necessary; never below 0, ∞ if nothing is known.

    A bound of 0 proves nothing: its share of 100% would be read as a result.
    """
    if not best:
        return 0.0
    return inf if best == inf or bound <= 0.0 else max(0.0, best - bound) / best


class Incumbent:
    """Incumbent and bound of a search, reported by many threads.

    listen: is called with each new standing, one at a time.
    patience: seconds after which any schedule is enough.
    clock: of the time limit, once it is known.
    """

    def __init__(self, patience: float = inf) -> None:
        self._start, self._lock, self.patience = monotonic(), Lock(), patience
        self.listen: Callable[[IncumbentState], None] = lambda _standing: None
        self.history: list[IncumbentState] = []
        self.clock: Clock | None = None

    @property
    def best(self) -> float:
        return self.history[-1].best if self.history else inf

    @property
    def bound(self) -> float:
        """The largest that holds for every schedule."""
        return self.history[-1].bound if self.history else 0.0

    @property
    def idle(self) -> float:
        """Seconds since the best schedule was found; 0 before the first."""
        found = next((state.elapsed for state in self.history if state.best == self.best < inf), None)
        return 0.0 if found is None else monotonic() - self._start - found

    def found(self, seconds: float, who: str) -> None:
        """Record a schedule within the budget that takes so many seconds."""
        with self._lock:
            # The first schedule has no best before it: ∞ · (1 − ε) is ∞, and an infinite time is no schedule.
            if seconds < self.best * (1.0 - _SAME) or self.best == inf > seconds:
                self._add(seconds, self.bound, who)

    def proved(self, seconds: float, who: str) -> None:
        """Record a proof that no schedule within the budget takes less."""
        with self._lock:
            if seconds > self.bound * (1.0 + _SAME):
                self._add(self.best, seconds, who)

    def within(self, share: float) -> bool:
        """Tell whether the best is enough: proven to be within this gap, or there when patience is over."""
        over = self.best < inf and monotonic() - self._start > self.patience
        return over or self.enough(self.best, share)

    def enough(self, seconds: float, share: float) -> bool:
        """Tell whether a schedule of so many seconds is proven to be within this gap; 0: the fastest."""
        return gap(seconds, self.bound) <= max(share, PROVEN)

    def _add(self, best: float, bound: float, who: str) -> None:
        standing = IncumbentState(monotonic() - self._start, best, bound, who)
        self.history.append(standing)
        fastest = "no schedule yet" if best == inf else f"fastest {duration(best)}"
        _log.debug("%s, lower bound %s, by %s", fastest, duration(bound), who)
        self.listen(standing)
