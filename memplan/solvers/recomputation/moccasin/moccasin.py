"""Moccasin: the fastest schedule that runs no operation more than a few times, by constraint programming.

Minimises the seconds of all runs within the device's bytes. Assumes that first runs keep the traced order,
and that each operation runs at most `copies` times; once that is settled, or a share of the time is over, up
to `most` times. It is exact: OPTIMAL means that no schedule in traced order with at most `most` runs of an
operation is faster. The answer's lower bound is the general one, since other orders and more runs may be
faster. Exponential in the worst case; graphs of 100 operations take seconds to a minute, and at 250 it often
finds nothing in one. The paper's symbols are in model.py.

In each round every operation may run once more than in the last. A round starts from the fastest schedule
known that it can express (one from greedy eviction at first). If there is none, it first minimises the bytes
above the budget, from the baseline on, until there are none: the paper's two phases. Unless it is the last, a
round takes at most half the time that is left.

In the order to read:

    timeline.py                 what is to be decided: stages, what may be recomputed, events
    model.py, copies.py         the constraint program; the intervals of one tensor
    start.py, times.py          a sequence as values of the variables; seconds as whole numbers
    search.py, worker.py        CP-SAT at work in a worker process: both sides
    moccasin.py                 more copies in each round

Reference: B. Bartan, H. Li, H. Teague, C. Lott, B. Dilkina, Moccasin: Efficient Tensor Rematerialization for
Neural Networks, ICML 2023, arXiv:2304.14463.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf

from ....graphs.errors import InputError, MissingPackageError
from ....graphs.machine import Machine
from ....planner.bounds import minimum_memory, time_bound
from ....planner.schedule.sequence import Run, in_default_mode, runs_of, schedule_of
from ...candidates import (
    Candidate,
    baseline_candidate,
    device_limit,
    fastest_baseline,
    infeasible,
    own_bound,
    simulate_candidate,
)
from ...milp.result import MilpStatus, Progress
from ...problem import NotFoundError, Options, Problem, SearchStats, SolverResult, Status
from ...settings import SolverSettings, seed_setting, setting, workers_setting
from ...skipped import skipping
from ...stages.eviction import sequences
from .search import Limits, MoccasinResult, Question, Searcher

NAME = "moccasin"

PROVEN = 1e-6
"""The relative gap at which an answer counts as optimal."""

EVICTION_SECONDS = 5.0
"""The most that is spent on greedy eviction."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of moccasin."""

    copies: int = setting(2, "how often an operation may run in the first round", least=1)
    most: int = setting(3, "how often an operation may run in the last round")
    threads: int = workers_setting(0, "CP-SAT's workers; 0: one per core")
    seed: int = seed_setting("seed of the search")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < self.copies:
            raise InputError(f"most must be at least copies, which is {self.copies}, not {self.most}")


def solve(problem: Problem, options: Options) -> SolverResult:
    """Solve the problem. Ctrl-C during the search ends it: the answer is the best so far."""
    if find_spec("ortools") is None:
        raise MissingPackageError(
            "moccasin needs OR-tools, which is not installed: pip install 'memplan[moccasin]'"
        )
    settings = options.chosen(Settings)
    graph, limit = problem.graph, device_limit(problem)
    baseline = baseline_candidate(graph)
    if (fastest := fastest_baseline(problem, baseline)) is not None:
        return fastest
    rounds = _Rounds(problem, options, settings, baseline)
    first = settings.copies
    # No schedule fits: one round, the last, says how near to the budget one comes.
    if limit < minimum_memory(graph, Machine()):
        first = settings.most
    else:
        rounds.evict()
    with Searcher(graph) as searcher:
        for copies in range(first, settings.most + 1):
            rounds.next(searcher, copies)
            if rounds.clock.expired:
                break
    return rounds.answer()


class _Rounds:
    """Rounds of the search, each with one more run per operation.

    best: the fastest schedule within the limit.
    least: the schedule of the smallest peak.
    bound: seconds, of the last round.
    impossible: the last round has no schedule within the limit, and none of a smaller peak than `least`.
    """

    def __init__(self, problem: Problem, options: Options, settings: Settings, baseline: Candidate) -> None:
        self.problem, self.options, self.settings = problem, options, settings
        self.graph, self.limit = problem.graph, device_limit(problem)
        self.capacity = self.limit - self.graph.resident_bytes
        self.clock = options.clock()
        self.best = baseline if baseline.peak <= self.limit else None
        self.least, self.copies, self.bound = baseline, 0, -inf
        self.impossible = False

    def evict(self) -> None:
        part = self.clock.part(1 / 10, EVICTION_SECONDS)
        for runs in sequences(self.graph, self.limit, lambda: not part.over):
            self._take(runs)

    def next(self, searcher: Searcher, copies: int) -> None:
        self.round = self.clock.part(1 if copies == self.settings.most else 1 / 2)
        self.copies, self.bound, self.impossible = copies, -inf, False
        start = self.best if self.best and _most_runs(self.best) <= copies else None
        if start is None:
            baseline = in_default_mode(range(len(self.graph.operations)))
            found = self._search(searcher, baseline, least=True)
            # In units of excess above the limit: a positive bound proves that nothing fits.
            self.impossible = found.status == MilpStatus.OPTIMAL and found.bound > 0
            start = self.best if found.objective == 0 else None
        if start is not None and not self.clock.interrupted:
            self.bound = self._search(searcher, runs_of(start.schedule)).bound

    def _search(self, searcher: Searcher, start: list[Run], *, least: bool = False) -> MoccasinResult:
        """Search for a schedule and take the best sequence found.

        least: minimise what exceeds the limit, until nothing does.
        """
        # With `least`, any excess of 0 will do: seconds are minimised by the next search.
        limits = Limits(self.round.limit, self.settings.threads, self.settings.seed, 0 if least else None)
        found = searcher.search(
            Question(self.capacity, self.copies, start, least, limits),
            self._nothing if least else self._tell,
        )
        self.clock.interrupted |= searcher.interrupted
        if found.runs is not None:
            self._take(found.runs)
        return found

    def _take(self, runs: list[Run]) -> None:
        with skipping(NAME):
            self._compare(simulate_candidate(self.graph, schedule_of(self.graph, runs)))

    def _compare(self, candidate: Candidate) -> None:
        if candidate.peak <= self.limit and (self.best is None or candidate.time < self.best.time):
            self.best = candidate
        if candidate.peak < self.least.peak:
            self.least = candidate

    def _nothing(self, _found: MoccasinResult) -> None:
        """Ignore a solution whose objective is an excess, not a time."""

    def _tell(self, found: MoccasinResult) -> None:
        progress = Progress(found.objective, found.bound, found.seconds)
        figures = (
            f"incumbent {progress.incumbent:.6g} s, bound {progress.bound:.6g} s, gap {progress.gap_text}"
        )
        self.options.report(f"{self.copies} runs at most: {figures}, {progress.seconds:.0f} s elapsed")

    def answer(self) -> SolverResult:
        best, last = self.best, self.copies == self.settings.most
        if best is None:
            self.clock.raise_if_interrupted()
            if last and self.impossible:
                raise infeasible(NAME, self.problem, self.least.peak)
            raise NotFoundError(NAME, self.limit, minimum_memory(self.graph, self.problem.machine))
        self.options.report(
            f"{best.time:.6g} s; in traced order with at most {self.copies} runs of an operation, no "
            f"schedule is faster than {self.bound:.6g} s"
        )
        # An earlier round's bound holds for its own number of runs alone.
        proven = last and best.time <= self.bound + PROVEN * best.time
        status = Status.OPTIMAL if proven else Status.FEASIBLE
        form = f"at most {self.copies} runs of an operation"
        own = own_bound(NAME, self.problem, self.bound, "file", form)
        effort = SearchStats.of(None, best.time, self.bound)
        return SolverResult(
            best.schedule, status, time_bound(self.graph), self.clock.interrupted, own, effort=effort
        )


def _most_runs(candidate: Candidate) -> int:
    return max(Counter(operation for operation, _mode in runs_of(candidate.schedule)).values(), default=1)
