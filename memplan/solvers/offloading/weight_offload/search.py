"""The best order found: annealing from the best start, repeated with other random numbers while that helps.

Compiled code runs for a part of a second at a time, then this looks at the clock. Ends at once if the
period is the time of all runs: no schedule is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.compiled import is_compiled
from ....graphs.units import duration
from ...annealing import Cooling, seed
from ...problem import Options
from ...workers.precompile import COMPILING
from ..cycles.cycle import Cycle
from ..cycles.facts import facts_of, scratch
from ..cycles.replay import period
from .anneal import anneal, orders_from

HOT, COLD = 3e-3, 3e-5
"""The temperature at the start and the end, as shares of the period."""

_WORK = 200_000_000
"""Entries of orders that one annealing replays at most."""

_CHUNK_SECONDS = 0.1
_PROVEN = 1e-9
_PATIENCE = 2
"""Repetitions without gain that end the search before its time."""


class OrderSearch:
    """A search over the orders of a cycle.

    best: the order so far, None before any start holds; seconds: its period. fastest: no order's is shorter.
    """

    def __init__(self, cycle: Cycle, options: Options) -> None:
        self.facts = facts_of(cycle)
        self.scratch = scratch(self.facts)
        self.host_limit = 2**62 if cycle.host_limit is None else cycle.host_limit
        self.options = options
        self._load_replay()
        self.clock = options.clock()
        self.fastest = sum(cycle.seconds)
        self.best: Ints | None = None
        self.seconds = inf

    def _report_compiling(self, function: Callable[..., object]) -> None:
        if not is_compiled(function):  # what is kept on disk is loaded in a moment
            self.options.report(COMPILING)

    def _load_replay(self) -> None:
        """Load the compiled replay, so that compiling takes none of the limited time."""
        if not period.signatures:  # pyright: ignore[reportFunctionMemberAccess]
            self._report_compiling(period)
            period(self.facts, np.arange(len(self.facts.seconds)), self.scratch)

    def _load(self) -> None:
        """Load the compiled search, so that compiling takes none of the limited time."""
        if not anneal.signatures:  # pyright: ignore[reportFunctionMemberAccess]
            self._report_compiling(anneal)
            seed(0)
            nothing = np.arange(len(self.facts.seconds))
            # Compiling is not the search's time.
            begin = monotonic()
            orders = orders_from(self.facts, nothing, inf)
            anneal(self.facts, orders, self.scratch, 0, 1.0, 0.5, self.host_limit)
            self.clock.end += monotonic() - begin

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.clock.left)

    @property
    def done(self) -> bool:
        """Tell whether the order is proven fastest, or the answer is wanted."""
        return self.seconds <= self.fastest * (1.0 + _PROVEN) or self.clock.expired

    def offer(self, order: Sequence[int] | Ints) -> bool:
        """Take the order if it is the best so far."""
        array = np.array(order, np.int64)
        seconds = period(self.facts, array, self.scratch)
        if seconds >= self.seconds:
            return False
        self.best, self.seconds = array, seconds
        return True

    def anneal(self, moves: int, number: int) -> None:
        """Anneal once, and repeat while the limit leaves time and it helps.

        number: seed of the random numbers.
        """
        without_gain = 0
        self._load()
        while not self.done and without_gain < _PATIENCE and self.best is not None:
            before = self.seconds
            self._once(moves, number)
            number += 1
            without_gain = 0 if self.seconds < before * (1 - 1e-6) else without_gain + 1
            # Without a limit one annealing is the answer, and the same each time.
            if self.clock.end == inf:
                break

    def _once(self, moves: int, number: int) -> None:
        assert self.best is not None
        seed(number)
        orders, hottest = orders_from(self.facts, self.best, self.seconds), max(self.seconds * HOT, 1e-300)
        cooling = Cooling(
            # A move costs time in proportion to the order: long cycles get fewer.
            moves=min(moves, _WORK // max(1, len(self.best))),
            hot=hottest,
            cold=hottest * (COLD / HOT),
            until=self.clock.end,
            chunk=50,
            chunk_seconds=_CHUNK_SECONDS,
        )
        for chunk, hot, cold in cooling.chunks():
            if self.done:
                break
            anneal(self.facts, orders, self.scratch, chunk, hot, cold, self.host_limit)
            seconds = float(orders.seconds[0])
            if seconds < self.seconds:
                self.best, self.seconds = orders.best[: orders.best_length[0]].copy(), seconds
                over = seconds / self.fastest - 1 if self.fastest else 0.0
                self.options.report(f"best {duration(seconds)}, {over:+z.1%} vs. the time of all operations")
