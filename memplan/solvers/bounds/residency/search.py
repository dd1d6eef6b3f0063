"""The search for a residency bound: which moments to look at, in fractions first, then in whole numbers.

Every answer in whole numbers is tried as a schedule too, in traced order. If it fits the budget and takes
the bound's time, both are proven; if it does not fit, its peaks are the moments that were missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Floats
from ....graphs.graph import Graph
from ....graphs.outward import product_below
from ...candidates import Candidate
from ...clock import Clock
from ...milp import highs
from ...milp.result import BackendError, MilpStatus, Result, Settings
from ...milp.scaling import scaled
from ...problem import OrderName
from .cuts import CutPart, Network, part_of
from .facts import facts_of
from .moments import Later, bytes_at, candidates, in_windows, largest
from .order import BEFORE, OPEN, any_order, file_order
from .prices import Priced, best_prices
from .program import ResidencyProgram
from .sequence import trial
from .windows import residency_program

ALL_AT_ONCE = 12
"""Number of candidates up to which the first program has them all."""

MOST_CANDIDATES = 600
MOST_LOOKS = 12_000_000
"""Candidates times operations: of graphs with very many, fewer are looked at."""

MOST_WHOLE = 20_000
"""Operations, above which programs in whole numbers are hopeless."""

ROW_SECONDS = 6e-5
"""Seconds per row of the first relaxation of such a program; HiGHS does not end within it."""

MOST_NESTED = 10_000
"""Moments times what has run before each: up to here all intervals between moments may have rows."""

PLAIN_SECONDS = 3.0
"""Time limit for a program without rows for intervals.

If it takes longer, they raise the bound; else they only cost time.
"""

A_ROUND = 5
"""Moments added at a time."""

NEGLIGIBLE = 1e-4
"""An excess over the budget, as a part of it, that is not worth a moment in fractions."""

RISE = 1e-4
"""A round that raises the bound by less, as a part of the time of all operations, was idle."""

IDLE = 2
"""Idle rounds in a row that end a phase."""

PROVEN = 1e-6
"""A bound this near to a time, relatively, proves it."""


@dataclass(frozen=True, eq=False)
class Best:
    """The best bound so far.

    extra: seconds that every schedule takes above the time of all operations.
    later: the newest answer's recomputations.
    moments, whole: as in `Residency`.
    """

    extra: float
    later: Later
    moments: list[int]
    whole: bool = False


class ResidencyBoundSearch:
    """The search for the best bound, and for a schedule that reaches it.

    budget: bytes that programs may use.
    limit: bytes that schedules may use.
    goal: seconds of a known schedule; a bound that reaches them is enough.
    moments: to begin with.
    tell: is called with each higher `extra`.
    cancelled: whether the time is over.

    best: the best bound so far.
    certain, proof: the best `extra` in fractions, and its prices, by operation; others are HiGHS' word.
    found: the fastest schedule within the limit.
    least: the smallest peak of a schedule above the limit.
    """

    def __init__(
        self,
        graph: Graph,
        budget: int,
        order: OrderName,
        seconds: float,
        *,
        limit: int | None = None,
        goal: float = inf,
        moments: Sequence[int] = (),
        tell: Callable[[float], None] = lambda _seconds: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.tell, self.cancelled, self.clock = tell, cancelled, Clock(seconds, cancelled)
        self.graph, self.facts, self.budget = graph, facts_of(graph), budget
        self.limit, self.goal = budget if limit is None else limit, goal
        self.best = Best(0.0, Later.of(np.zeros(len(graph.operations))), [])
        self.found: Candidate | None = None
        self.least: int | None = None
        self.nested = False
        self.time_of_all = sum(self.facts.seconds)
        self.seconds = self.time_of_all or 1.0
        self.chosen: list[int] = []
        self.seeds = list(moments)
        self.crowded: dict[int, set[int]] = {}
        self.parts: dict[int, CutPart] = {}
        self.prices: dict[int, float] = {}
        self.certain, self.proof = 0.0, dict[int, float]()
        if self.facts.minimum > budget:
            self.best = replace(self.best, extra=inf)
            self.certain = inf
            return
        most = min(MOST_CANDIDATES, max(ALL_AT_ONCE, MOST_LOOKS // max(1, len(graph.operations))))
        self.order: OrderName = order
        self.candidates = candidates(self.facts, budget, most, order)
        self.moment = file_order(graph) if order == "file" else any_order(self.facts.predecessors)

    @property
    def proven(self) -> bool:
        time = min(self.goal, self.found.time if self.found else inf)
        return self.time_of_all + self.best.extra >= time * (1.0 - PROVEN)

    def run(self, whole: bool = True) -> bool:
        """Run the search; tell whether it came to its end before the time did.

        whole: also search in whole numbers.
        """
        # ∞: some operation alone needs more than the budget.
        if self.best.extra < inf:
            with self.clock.until_interrupted():  # HiGHS returns at Ctrl-C; it may come between two programs
                self._fractions()
                if self.chosen and whole and len(self.graph.operations) <= MOST_WHOLE:
                    self._whole()
        return self.proven or (whole and self._in_time())

    def _fractions(self) -> None:
        a_round = max(1, len(self.candidates)) if len(self.candidates) <= ALL_AT_ONCE else A_ROUND
        idle = 0
        if self.order == "any" and self.seeds:
            # Where most is open, a moment of the traced order costs a large cut and seldom proves anything.
            seeds, half = np.array(self.seeds), len(self.graph.operations) // 2
            sure = bytes_at(self.facts, self.best.later, seeds, "any")
            open_ = np.array([self.moment(operation).side.count(OPEN) for operation in self.seeds])
            self.seeds = _at(seeds, np.flatnonzero((sure > self.budget) | (open_ <= half)).tolist())
        if self.seeds:  # those with most on a known side first
            known = sorted(self.seeds, key=lambda operation: self.moment(operation).side.count(OPEN))
            self._in_fractions(known[: (len(known) + 1) // 2])
            self._in_fractions(known)
        while idle < IDLE and self._goes_on():
            more = self._missing(a_round)
            if not more:
                break
            idle = 0 if self._in_fractions(more) else idle + 1

    def _whole(self) -> None:
        """Search in whole numbers, with windows.

        Rounds count as idle if nothing is known to be wrong with the answer.
        """
        more: list[int] = []
        idle = 0
        while idle < IDLE and self._goes_on():
            rises = self._in_whole_numbers(more)
            if self.proven:
                break
            known = self._rows()
            more = self._peaks(A_ROUND)
            if more or self._rows() > known:
                continue
            idle = 0 if rises else idle + 1
            more = self._missing(A_ROUND) or self._between(A_ROUND)
            if not more:
                break

    def _rows(self) -> int:
        return sum(map(len, self.crowded.values()))

    def _goes_on(self) -> bool:
        return self._in_time() and not self.proven

    def _in_time(self) -> bool:
        return self.clock.goes_on()

    def _peaks(self, most: int) -> list[int]:
        """Return first runs at which the newest answer, as a schedule, does not fit."""
        attempt = trial(self.graph, self.best.later) if self.best.whole else None
        if attempt is None:
            return []
        new = attempt.candidate
        if new.peak > self.limit:
            self.least = min(new.peak, self.least or new.peak)
        elif self.found is None or new.time < self.found.time:
            self.found = new
        # As a schedule the answer may not fit at moments that the program does not look at.
        excess = attempt.first_runs - self.budget
        for first, operation, used in attempt.recomputations:
            if used > self.budget:
                self._crowd(first, operation, excess)
        excess[self.chosen] = 0.0
        return largest(excess, most)

    def _crowd(self, first: int, operation: int, excess: Floats) -> None:
        """Write (10) for an operation that does not fit when it is recomputed after `first` has run.

        Before the first window and in the last there is no such row; a moment is requested there, and also
        where the row was not enough.
        """
        starts = self.best.later.starts
        window = int(np.searchsorted(starts, first, side="right")) - 1
        if 0 <= window < len(starts) - 1:
            known = self.crowded.setdefault(int(starts[window]), set())
            if operation not in known:
                known.add(operation)
                return
        near = [place for place in (first, first + 1) if 0 <= place < len(excess)]
        new = [place for place in near if place not in self.chosen]
        excess[new[:1]] = np.maximum(excess[new[:1]], 1.0)

    def _missing(self, most: int) -> list[int]:
        """Return candidates at which the newest answer would not fit: surely, and then in traced order."""
        orders: tuple[OrderName, ...] = ("any", "file") if self.order == "any" else ("file",)
        found: list[int] = []
        for order in orders:
            used = bytes_at(self.facts, self.best.later, self.candidates, order)
            excess = used - self.budget * (1.0 + NEGLIGIBLE)
            excess[np.isin(self.candidates, [*self.chosen, *found])] = 0.0
            found += _at(self.candidates, largest(excess, most - len(found)))
        return found

    def _between(self, most: int) -> list[int]:
        """Return candidates in the middle of the widest intervals between those chosen."""
        marks = [-1, *np.flatnonzero(np.isin(self.candidates, self.chosen)).tolist(), len(self.candidates)]
        stretches = sorted(((end - start, start) for start, end in pairwise(marks)), reverse=True)
        return _at(self.candidates, [start + width // 2 for width, start in stretches[:most] if width > 1])

    def _in_fractions(self, more: Sequence[int]) -> bool:
        """Price the memory of more moments; tell whether the bound rises."""
        answer = self._priced(more, self.budget, (self.goal - self.time_of_all) / self.seconds)
        extra = product_below(answer.bound, self.seconds)
        if extra > self.certain:
            self.certain, self.proof = extra, dict(self.prices)
        return self._take(extra, Later.of(answer.recomputed))

    def again_within(self, budget: int, more: Sequence[int], weights: Floats) -> Floats | None:
        """Return what is recomputed, in fractions, for another budget and weights; None if nothing fits.

        The bound stays as it is.

        budget: bytes that the program may use.
        more: moments besides those chosen so far.
        weights: per operation, a factor on its seconds.
        """
        answer = self._priced(more, budget, weights=weights)
        return None if answer.bound == inf else answer.recomputed

    def _priced(
        self, more: Sequence[int], budget: int, goal: float = inf, weights: Floats | float = 1.0
    ) -> Priced:
        self.chosen = sorted({*self.chosen, *more})
        for operation in self.chosen:
            if operation not in self.parts:
                self.parts[operation] = part_of(self.facts, self.moment(operation), self.budget)
        less = self.budget - budget
        parts = [part._replace(room=part.room - less) for part in map(self.parts.__getitem__, self.chosen)]
        network = Network(self.facts, parts, self.budget, self.seconds, weights)
        # Prices of the round before are a good start: most moments stay.
        start = np.array([self.prices.get(operation, 0.0) for operation in self.chosen])
        answer = best_prices(network, start, goal, self._in_time)
        self.prices = dict(zip(self.chosen, answer.prices.tolist(), strict=True))
        return answer

    def _in_whole_numbers(self, more: Sequence[int]) -> bool:
        """Solve the program in whole numbers; tell whether the bound rises.

        Rows for intervals are added once a program without them has taken long.
        """
        self.chosen = sorted({*self.chosen, *more})
        try:
            part, result = self._solved(PLAIN_SECONDS)
            # It did not end in PLAIN_SECONDS: then rows for all intervals are worth their price.
            if result and result.status in (MilpStatus.FEASIBLE, MilpStatus.UNKNOWN) and self._goes_on():
                self._take(product_below(result.bound, part.seconds), None)
                self.nested = True
                part, result = self._solved(inf)
        except BackendError:
            return False
        if result is None:
            self.clock.end = -inf  # what is left of the time is too little for such a program
            return False
        later = None if result.x is None else self._later(part, np.maximum(result.x, 0.0))
        return self._take(product_below(result.bound, part.seconds), later, whole=True)

    def _solved(self, seconds: float) -> tuple[ResidencyProgram, Result | None]:
        """Solve the program in whole numbers; the result is None if it needs more time than is left.

        seconds: the most for a program that may still get rows for intervals.
        """
        moments = [self.moment(operation) for operation in self.chosen]
        # Rows for all intervals grow with the square of the moments.
        fits = len(moments) * sum(moment.side.count(BEFORE) for moment in moments) <= MOST_NESTED
        part = residency_program(
            self.facts,
            self.budget,
            moments=moments,
            windows=True,
            crowded=self.crowded,
            nested=self.nested and fits,
        )
        left = max(0.0, self.clock.left)
        if left < ROW_SECONDS * len(part.program.row_lower):
            return part, None
        most = left if self.nested or not fits else min(seconds, left)
        limit = None if most == inf else most
        fit = scaled(part.program)
        result = highs.solve(
            fit.program,
            Settings(threads=1),
            time_limit=limit,
            start={},
            progress=lambda _progress: None,
            cancelled=self.cancelled,
        )
        self.clock.interrupted |= result.interrupted
        return part, fit.result(result)

    def _take(self, extra: float, later: Later | None, whole: bool = False) -> bool:
        before = self.best.extra
        self.best = replace(self.best, extra=max(before, extra))
        if later is not None:
            self.best = Best(self.best.extra, later, self.chosen, whole)
        if self.best.extra > before:
            self.tell(self.best.extra)
        return self.best.extra - before >= RISE * self.time_of_all

    def _later(self, part: ResidencyProgram, x: Floats) -> Later:
        def runs(columns: Mapping[int, int]) -> Floats:
            row = np.zeros(len(self.facts.once))
            row[list(columns)] = x[list(columns.values())]
            return row

        starts = [start for start, _window in part.within]
        return in_windows(self.facts, runs(part.reruns), starts, [runs(w) for _start, w in part.within])


def _at(places: NDArray[np.int64], indices: Sequence[int]) -> list[int]:
    return [int(places[index]) for index in indices]
