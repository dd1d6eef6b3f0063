"""Rounding: the residency program's answer in fractions, made whole piece by piece, as a schedule.

Minimises the seconds of all runs within the device's bytes. Assumes no chain; first runs keep the file's
order. The program (bounds/residency) gives a bound and, per operation, how far it runs again: a mean of a few
minimum cuts. The operations are divided into pieces; each takes one of the cuts, by where its number in a
sequence of low discrepancy lies, so all pieces together come close to the mean, at every moment:

    o runs again   if   fraction_o > vdc(piece of o)          vdc: van der Corput's sequence in base 2

sequence.py makes runs of it. What they take above the budget, while tensors are made again side by side, is
taken off the budget that the program is told, and the tightest run becomes a moment; then off by bisection,
until the schedule is near the bound or the budget is used up. A piece and what is made again at a time weigh
the less the larger the graph: of 10⁵ operations the schedule is as fast as the bound within parts of a
thousandth. Near the least memory, where what is made again must itself be made in parts, there is often none.

Near-linear: some fifteen minimum cuts a round, and a few rounds. Our own; the rounding of one linear program
by another one's threshold is that of Checkmate (Jain et al. 2020, arXiv:1910.02653, 5.1), the program is not.
"""

from __future__ import annotations

from math import inf
from time import monotonic

import numpy as np

from ....graphs.arrays import Floats, Ints
from ....planner.bounds import memory_floor, time_bound, uses_host
from ....planner.replay.runs import RunFigures, figures_of_runs
from ....planner.schedule.sequence import schedule_of
from ...bounds.residency.search import Search
from ...candidates import device_limit, plain_candidate
from ...problem import Answer, NotAcceptedError, NotFoundError, Options, Problem, Status
from ...stages.slots import has_faster_ways
from .sequence import rows_of, sequence_of

NAME = "rounding"

PIECES = (1, 8, 64, 512)

ROUNDS = 16
"""At most, of programs with another budget."""

NEAR = 1e-3
"""A schedule so close to the bound, or a budget so close to one that is too large, is not improved."""

SLACK = 1.25
"""By how much of the excess the program's budget is lowered, where no budget is known to do."""


def solve(problem: Problem, options: Options) -> Answer:
    """Raises NotAcceptedError where operations can use the host, NotFoundError."""
    graph, limit = problem.graph, device_limit(problem)
    if uses_host(graph):
        raise NotAcceptedError(f"{NAME} takes operations that run on the device alone")
    plain = plain_candidate(graph)
    if plain.peak <= limit and not has_faster_ways(graph):
        return Answer(plain.schedule, Status.OPTIMAL, time_bound(graph))
    rounds = _Rounds(problem, options)
    rounds.run()
    if rounds.best is None:
        floor = memory_floor(graph, problem.machine)
        raise NotFoundError(NAME, limit, floor, None if rounds.least == inf else int(rounds.least))
    runs = [(operation, 0) for operation in rounds.runs.tolist()]
    return Answer(schedule_of(graph, runs), Status.HEURISTIC)


class _Rounds:
    """best: of the fastest sequence that fits; runs: its operations. least: bytes of the one that is nearest
    to fitting."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.graph, self.limit, self.options = problem.graph, device_limit(problem), options
        self.deadline = inf if options.time_limit is None else monotonic() + options.time_limit
        half = (self.deadline - monotonic()) / 2  # the rest is for lower budgets
        self.program = Search(
            self.graph, self.limit, "file", half, tell=self._rises, cancelled=options.cancelled
        )
        self.rows = rows_of(self.graph)
        self.best: RunFigures | None = None
        self.runs: Ints = np.zeros(0, np.int64)
        self.least = inf

    def run(self) -> None:
        self.program.run(whole=False)
        self.program.deadline = self.deadline
        if self.program.best.extra == inf:
            return
        fractions: Floats | None = self.program.best.later.runs[0]
        budget, fits, fails, step = self.limit, 0, self.limit, NEAR * self.limit
        for _round in range(ROUNDS):
            if fractions is None:
                break
            excess, more = self._tried(fractions)
            if excess <= 0:
                fits = budget
            else:
                fails = budget
            if self._near_bound() or (fits and fails - fits <= NEAR * self.limit) or not self._proceed():
                break
            if fits:
                budget = (fits + fails) // 2
            else:
                budget -= int(max(SLACK * excess, step))
                step *= 2
            fractions = self.program.again_within(budget, more)

    def _rises(self, extra: float) -> None:
        """What the program has so far may do already."""
        if extra < inf:
            self._tried(self.program.best.later.runs[0])

    def _tried(self, fractions: Floats) -> tuple[int, list[int]]:
        """Bytes above the limit of the sequence with fewest, and the first run where that is, as a moment."""
        nearest, moments = inf, list[int]()
        for pieces in PIECES:
            again = fractions > _thresholds(len(fractions), pieces)
            runs = sequence_of(self.rows, again, np.array(self.program.chosen, np.int64))
            figures = None if runs is None else figures_of_runs(self.graph, np.column_stack([runs, 0 * runs]))
            if runs is None or figures is None:
                continue
            if figures.peak < nearest:
                nearest, moments = figures.peak, [_first_run(runs, figures.tightest)]
            if figures.peak <= self.limit and (self.best is None or figures.time < self.best.time):
                self.best, self.runs = figures, runs
                self.options.race.found(figures.time, NAME)
        self.least = min(self.least, nearest)
        return (self.limit, []) if nearest == inf else (int(nearest) - self.limit, moments)

    def _near_bound(self) -> bool:
        bound = time_bound(self.graph) + self.program.best.extra
        return self.best is not None and self.best.time * (1.0 - NEAR) <= bound

    def _proceed(self) -> bool:
        return monotonic() < self.deadline and not self.options.cancelled()


def _thresholds(operations: int, pieces: int) -> Floats:
    """Per operation the number of its piece in van der Corput's sequence, strictly between 0 and 1."""
    number, part = np.arange(pieces), 0.5
    sequence = np.full(pieces, 0.5 / pieces)
    while number.any():
        sequence += part * (number & 1)
        number, part = number >> 1, part / 2
    return sequence[np.arange(operations) * pieces // max(1, operations)]


def _first_run(runs: Ints, place: int) -> int:
    """The operation that runs for the first time at this place or, where none does, next."""
    highest = np.maximum.accumulate(runs)
    return int(highest[place + int(np.argmax(runs[place:] > (highest[place - 1] if place else -1)))])
