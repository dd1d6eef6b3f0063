"""Rounding: the residency program's answer in fractions, made whole in groups of operations, as a schedule.

Minimises the seconds of all runs within the device's bytes. Assumes no chain; first runs keep the traced
order. The program (bounds/residency) gives a bound and, per operation, how far it is recomputed: a mean of a
few minimum cuts. The operations are divided into pieces. Each piece takes one of the cuts, chosen by its
number's place in a low-discrepancy sequence, so all pieces together come close to the mean, at every moment:

    o is recomputed   if   fraction_o > vdc(piece of o)          vdc: van der Corput's sequence in base 2

sequence.py makes runs of it. The program does not see two things. What is recomputed at one time coexists: so
paths along which all is recomputed are cut at a length, their reach. And what is dropped at several moments
is recomputed after each: so in the next program its seconds count as often as it ran. What the runs take
above the limit is subtracted from the next program's budget, half of what they leave is added, and the
tightest run becomes a moment; until the schedule is near the bound, or gets no faster.

A piece and a reach matter the less the larger the graph: for a chain of 10⁵ operations the schedule is as
fast as the bound within fractions of a thousandth. Near the minimum memory there is often no schedule.

Near-linear: some fifteen minimum cuts a round, and up to sixteen rounds. Developed for memplan; the rounding
of one linear program by another one's threshold is that of Checkmate (Jain et al. 2020, arXiv:1910.02653,
5.1), the program is not.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from ....graphs.arrays import Floats, Ints
from ....graphs.graph import Graph
from ....planner.bounds import minimum_memory, time_bound
from ....planner.replay.runs import RunFigures, figures_of_runs, schedule_of_runs
from ....planner.schedule.schedule import Schedule
from ....planner.variants import uses_host
from ...bounds.residency.residency import TracedOrder
from ...bounds.residency.search import ResidencyBoundSearch
from ...candidates import baseline_candidate, device_limit, fastest_baseline
from ...problem import NotAcceptedError, NotFoundError, Options, Problem, SolverResult, Status
from .sequence import rows_of, sequence_of

NAME = "rounding"

PIECES = (1, 8, 64, 512)

REACHES = (inf, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""The most bytes on a path along which all is recomputed, as a share of the limit."""

ROUNDS = 16
"""Most programs with another budget."""

IDLE = 6
"""Rounds without a faster schedule that end it, once there is one."""

NEAR = 1e-3
"""A schedule so close to the bound is not improved; what less than this makes faster is idle."""


def solve(problem: Problem, options: Options, traced: TracedOrder | None = None) -> SolverResult:
    """Solve by rounding. Raises NotAcceptedError if operations can use the host, NotFoundError.

    traced: takes what the program has found for the bounds of another thread.
    """
    graph, limit = problem.graph, device_limit(problem)
    if uses_host(graph):
        raise NotAcceptedError(f"{NAME} takes operations that run on the device alone")
    baseline = baseline_candidate(graph)
    if (fastest := fastest_baseline(problem, baseline)) is not None:
        return fastest
    rounds = _Rounds(problem, options)
    rounds.run(traced or TracedOrder())
    del rounds.program  # large, and it knows the rounds: a circle
    if rounds.best is None:
        min_memory = minimum_memory(graph, problem.machine)
        least = rounds.leanest
        refusal = NotFoundError(NAME, limit, min_memory, None if least is None else least.figures.peak)
        raise refusal.holding(None if least is None else least.schedule(graph))
    return SolverResult(rounds.best.schedule(graph), Status.HEURISTIC)


class _Trial(NamedTuple):
    """A sequence with its figures.

    recomputed: per operation, its runs but the first.
    """

    runs: Ints
    figures: RunFigures

    @property
    def recomputed(self) -> Ints:
        return np.bincount(self.runs) - 1

    def schedule(self, graph: Graph) -> Schedule:
        return schedule_of_runs(graph, np.column_stack([self.runs, 0 * self.runs]))


class _Rounds:
    """The rounds of programs and of the sequences made of their answers.

    best: the fastest of the sequences that fit.
    nearest: the sequence of least memory.
    weights: factors on each operation's seconds in the program.
    place: position among pieces and reaches of the best of the last round.
    """

    def __init__(self, problem: Problem, options: Options) -> None:
        self.graph, self.limit, self.options = problem.graph, device_limit(problem), options
        self.clock = options.clock()
        half = self.clock.left / 2  # the rest is for lower budgets
        self.program = ResidencyBoundSearch(
            self.graph, self.limit, "file", half, tell=self._rises, cancelled=options.cancelled
        )
        self.rows, self.least_time = rows_of(self.graph), time_bound(self.graph)
        self.place = 0, 0
        self.weights = np.ones(len(self.graph.operations))
        self.best: _Trial | None = None
        self.leanest: _Trial | None = None

    def run(self, traced: TracedOrder) -> None:
        self.program.run(whole=False)
        traced.leave(self.program)
        self.program.clock = self.clock
        if self.program.best.extra == inf:
            return
        fractions: Floats | None = self.program.best.later.runs[0]
        budget, idle = self.limit, 0
        for _round in range(ROUNDS):
            if fractions is None:
                break
            before = self.best
            nearest = self._tried(fractions)
            idle = 0 if self._faster_than(before) else idle + 1
            if nearest is None or self._near_bound() or idle == IDLE or not self._proceed():
                break
            self.weights = np.where(nearest.recomputed, (self.weights + nearest.recomputed) / 2, self.weights)
            excess = nearest.figures.peak - self.limit
            wanted = min(self.limit, budget - (excess if excess > 0 else excess // 2))
            moment = _first_run(nearest.runs, nearest.figures.tightest)
            budget, fractions = self._program_within(budget, wanted, moment)

    def _program_within(self, budget: int, wanted: int, moment: int) -> tuple[int, Floats | None]:
        """Return the next budget and the program's answer.

        The budget is the wanted one, or nearer to this one if nothing fits the wanted one.
        """
        while True:
            fractions = self.program.again_within(wanted, [moment], self.weights)
            if fractions is not None or budget - wanted <= NEAR * self.limit or not self._proceed():
                return wanted, fractions
            wanted = (budget + wanted) // 2  # a budget nearer to the last one, which had an answer

    def _rises(self, extra: float) -> None:
        """Try a sequence of the program's answer so far: it may already fit."""
        if extra < inf:
            self._tried(self.program.best.later.runs[0])

    def _tried(self, fractions: Floats) -> _Trial | None:
        """Return the sequence of least memory among those tried.

        The search moves from the best position of the last time to its neighbours, until none is better: all
        pieces, then other reaches. It ends when the best is near the bound, or the answer is requested.
        """
        moments, known = np.array(self.program.chosen, np.int64), dict[tuple[int, int], _Trial | None]()

        def rank(place: tuple[int, int]) -> tuple[float, float]:
            if place not in known:
                # All are tried while none fits, since each may be the first that does.
                ended = self.best is not None and (self._near_bound() or not self._proceed())
                known[place] = None if ended else self._trial(fractions, moments, *place)
            trial = known[place]
            if trial is None:
                return inf, inf
            return max(0, trial.figures.peak - self.limit), trial.figures.time

        _pieces, reach = self.place
        places = [(pieces, reach) for pieces in range(len(PIECES))]
        best = min(places, key=rank)
        while True:
            pieces, reach = self.place = best
            near = [(pieces, other) for other in (reach - 1, reach + 1) if 0 <= other < len(REACHES)]
            best = min([self.place, *near], key=rank)
            if best == self.place:
                break
        found = filter(None, known.values())
        nearest = min(found, key=lambda trial: trial.figures.peak, default=None)
        if nearest and (self.leanest is None or nearest.figures.peak < self.leanest.figures.peak):
            self.leanest = nearest
        return nearest

    def _trial(self, fractions: Floats, moments: Ints, pieces: int, reach: int) -> _Trial | None:
        recomputed = fractions > _thresholds(len(fractions), PIECES[pieces])
        runs = sequence_of(self.rows, recomputed, moments, REACHES[reach] * self.limit)
        figures = None if runs is None else figures_of_runs(self.graph, np.column_stack([runs, 0 * runs]))
        if runs is None or figures is None:
            return None
        trial = _Trial(runs, figures)
        if figures.peak <= self.limit and (self.best is None or figures.time < self.best.figures.time):
            self.best = trial
            self.options.race.found(figures.time, NAME)
        return trial

    def _faster_than(self, before: _Trial | None) -> bool:
        if before is None or self.best is None:
            return True
        return self.best.figures.time < before.figures.time * (1.0 - NEAR)

    def _near_bound(self) -> bool:
        bound = self.least_time + self.program.best.extra
        return self.best is not None and self.best.figures.time * (1.0 - NEAR) <= bound

    def _proceed(self) -> bool:
        return self.clock.goes_on()


def _thresholds(operations: int, pieces: int) -> Floats:
    """Return per operation the number of its piece in van der Corput's sequence, strictly between 0 and 1."""
    number, part = np.arange(pieces), 0.5
    sequence = np.full(pieces, 0.5 / pieces)
    while number.any():
        sequence += part * (number & 1)
        number, part = number >> 1, part / 2
    return sequence[np.arange(operations) * pieces // max(1, operations)]


def _first_run(runs: Ints, place: int) -> int:
    """Return the operation that runs for the first time at this position or, if none does, next."""
    highest = np.maximum.accumulate(runs)
    return int(highest[place + int(np.argmax(runs[place:] > (highest[place - 1] if place else -1)))])
