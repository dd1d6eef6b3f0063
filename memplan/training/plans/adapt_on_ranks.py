"""Drifting times of several ranks that train together: all compare theirs, and the slow one is named.

    every EVERY iterations    each gives how far its iterations have drifted
    one is 10 % off           all note the times of their operations and copies until the next comparison
    then                      each gives how much slower these are than planned; then plans are changed

A rank that is slow makes all iterations slow: the others wait for it in collectives, and their own operations
take as long as before. So what iterations take says that a rank is slow, and its operations and copies which.

Ranks that run one plan also give each other these times: an operation takes what it takes on the slowest
rank, a link what it takes there. Rank 0 moves transfers and solves, and all replace the plan between the same
two iterations, or none does. Ranks of DistributedDataParallel have plans of their own: each changes its plan
by its own times, after the comparison. The averages and their order are the same in all of these plans.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import inf

from ...devices.sharded.ranks import Ranks
from ...model.iteration import Iteration
from ...model.processes import Processes
from ...runtime.run.stopwatch import Times
from ...steps.execute import PlannedStep
from .adapt import Adapter, Case, Made
from .drift import SLOWED, slowdowns, slowest
from .plan import Planner
from .plan_cache import Plan
from .training_log import DRIFT

EVERY = 10
"""Iterations between two comparisons."""


def adapter_of(iteration: Iteration, planner: Planner, *, on: bool) -> Adapter:
    """Return the drift detection for the plans of a step. on: whether plans are changed."""
    if iteration.purpose == "part" or iteration.alone:
        return Adapter(planner, on=on)
    if iteration.ranks is not None:
        return JointAdapter(planner, iteration.ranks, on=on)
    assert iteration.processes is not None
    return AveragingAdapter(planner, iteration.processes, on=on)


class RanksAdapter(Adapter):
    """Detection of drifting times on several ranks, which compare theirs at the same iterations.

    _left: comparisons that are left out; _wait: those to leave out after the next drift.
    _timing: the step whose operations and copies are timed until the next comparison.
    """

    def __init__(self, planner: Planner, ranks: Ranks | Processes, *, on: bool) -> None:
        super().__init__(planner, on=on)
        self._names = [f"rank {rank} of {ranks.size}" for rank in range(ranks.size)]
        self._left, self._wait = 0.0, 1
        self._timing: PlannedStep | None = None

    def before(self, step: PlannedStep, iteration: Iteration) -> PlannedStep:
        return self._together(step, iteration) if self._is_due() else step

    @abstractmethod
    def _is_due(self) -> bool:
        """Tell whether all ranks compare before this iteration: the same on all."""

    @abstractmethod
    def _gathered(self, *mine: float) -> list[list[float]]:
        """Return the numbers that each rank has given, as many as each other."""

    @abstractmethod
    def _merged(self, times: Times | None) -> Times | None:
        """Return the times by which this rank's plan is changed; None to leave it."""

    def _together(self, step: PlannedStep, iteration: Iteration) -> PlannedStep:
        case = self._cases.setdefault(step, Case())
        if self._timing is not None:
            return self._compared(step, self._timing, iteration)
        if self._left > 0:
            self._left -= 1
        else:
            self._look(step, case)
        return step

    def _look(self, step: PlannedStep, case: Case) -> None:
        """Find out whether iterations of a rank have drifted, and have all time theirs if so."""
        drift = self._book.drift(step)
        rows = self._gathered(0.0 if drift is None else drift[0] / drift[1], float(self._on))
        ratios = [row[0] for row in rows]
        if not any(ratios):
            return
        if drift is not None:
            self._report_drift(step, *drift)
        else:
            rank = max(range(len(ratios)), key=ratios.__getitem__)
            off = f"{ratios[rank] - 1:+z.0%} against its plan"
            self._book.note(step, f"iterations of {self._names[rank]} take {off}")
        self._left, self._wait = self._wait, 2 * self._wait
        if not all(row[1] for row in rows):  # with plans of their own, ranks may have other options
            self._left = inf
            return
        case.taken = self._book.expected(step) if drift is None else drift[0]
        step.begin_timing()
        self._timing = step

    def _compared(self, step: PlannedStep, timed: PlannedStep, iteration: Iteration) -> PlannedStep:
        """Name the slow rank, and return the plan for the iteration about to run."""
        self._timing = None
        times, plan = timed.end_timing(), self._book.plan(timed)
        own = slowdowns(plan.graph, self._planner.machine_of(plan), times)
        self._book.note(timed, name_slow(self._names, self._gathered(*own)))
        times = self._merged(times)
        # A plan is changed for a batch of its own shape: one of another shape waits for the next drift.
        if times is None or step is not timed:
            return step
        return self._adapted(step, self._cases[step], iteration, times)


class JointAdapter(RanksAdapter):
    """Detection of drifting times of ranks that run one plan.

    _searches: whether rank 0 solves in the background.
    """

    def __init__(self, planner: Planner, ranks: Ranks, *, on: bool) -> None:
        super().__init__(planner, ranks, on=on)
        self._ranks, self._searches, self._iterations = ranks, False, 0

    def _together(self, step: PlannedStep, iteration: Iteration) -> PlannedStep:
        case = self._cases.setdefault(step, Case())
        with self._ranks.beating():
            if not self._searches:
                return super()._together(step, iteration)
            return self._solved(step, case, iteration) if self._search_ended(case) else step

    def _is_due(self) -> bool:
        self._iterations += 1
        return self._iterations % EVERY == 0

    def _gathered(self, *mine: float) -> list[list[float]]:
        return self._ranks.gathered(mine)

    def _merged(self, times: Times | None) -> Times | None:
        found: Sequence[Times | None] = self._ranks.gathered(times and times._replace(spans=()))
        known = [each for each in found if each is not None]
        return slowest(known) if len(known) == len(found) else None

    def _by_first(self, make: Callable[[], Made]) -> Made:
        return self._ranks.from_first(None if self._ranks.rank else make())

    def _search(self, step: PlannedStep, case: Case, plan: Plan) -> bool:
        self._searches = self._by_first(lambda: super(JointAdapter, self)._search(step, case, plan))
        return self._searches

    def _search_ended(self, case: Case) -> bool:
        """Tell whether rank 0 has an answer for this plan."""
        solving = case.solving
        ended, self._searches = self._by_first(
            lambda: (
                solving is not None and solving.ended.is_set(),
                any(each.solving is not None for each in self._cases.values()),
            )
        )
        return ended

    def _solved(self, step: PlannedStep, case: Case, iteration: Iteration) -> PlannedStep:
        self._searches, solving, case.solving = False, case.solving, None
        schedule, fault = self._by_first(lambda: (solving and solving.schedule, solving and solving.fault))
        return self._improved(step, case, iteration, schedule, fault)


class AveragingAdapter(RanksAdapter):
    """Detection of drifting times of ranks of DistributedDataParallel, each with a plan of its own.

    _compared_at: iterations with averages at the last comparison. They are counted because they are equally
        many on all ranks; those without, within no_sync, need not be.
    """

    def __init__(self, planner: Planner, processes: Processes, *, on: bool) -> None:
        super().__init__(planner, processes, on=on)
        self._processes, self._compared_at = processes, 0

    def before(self, step: PlannedStep, iteration: Iteration) -> PlannedStep:
        case = self._cases.setdefault(step, Case())
        # A search is this rank's alone, so that no comparison may depend on it.
        if self._timing is None and case.solving is not None and case.solving.ended.is_set():
            step = self._solved(step, case, iteration)
        return super().before(step, iteration)

    def _is_due(self) -> bool:
        rounds = self._processes.rounds
        # Not twice at one round: a call that fails before its averages may be made once more.
        due = rounds >= self._compared_at + EVERY
        self._compared_at = rounds if due else self._compared_at
        return due

    def _gathered(self, *mine: float) -> list[list[float]]:
        return self._processes.numbers(*mine)

    def _merged(self, times: Times | None) -> Times | None:
        return times


def name_slow(names: Sequence[str], rows: Sequence[Sequence[float]]) -> str:
    """Return the line that names the slowest rank, with what is slower there than planned.

    rows: of each rank, its `slowdowns`.
    """
    slow = [rank for rank, row in enumerate(rows) if max(row) > 1 + DRIFT]
    if not slow:
        return "no rank's operations or copies are slower than planned: the network is, or the program"
    worst = max(slow, key=lambda rank: max(rows[rank]))
    found = zip(SLOWED, rows[worst], strict=True)
    times = ", ".join(f"{what} {factor:.2g}" for what, factor in found if factor > 1 + DRIFT)
    more = len(slow) - 1
    others = f"; so {'is another' if more == 1 else f'are {more} others'}, less" if more else ""
    return f"{names[worst]} is slower than planned: {times} times the seconds{others}"
