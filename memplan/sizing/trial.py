"""Sizing for a device: the smallest budget found, and the largest batch.

Both are searches over one question, which any solver answers within its time: is there a schedule of this
graph within this budget? Budgets below the minimum memory of any schedule are not tried. A solver that finds
nothing proves nothing: the smallest budget is the smallest that *it* finds, and so is the largest batch.

    smallest budget   bisection, of the ratio, between minimum memory and the least budget of the best
    schedule so
                      far, until they are within a tolerance: about log2(log(ratio) / tolerance) questions
    largest batch     doubled while it fits, then bisected until it is within the tolerance of one that does
                      not: about log2(largest / tolerance) questions

Most of these questions need no solver. A batch whose baseline fits, fits. And a model's graphs differ
from batch to batch in numbers alone, so a schedule of one is a schedule of all: what was found for one batch
is simulated on the next (`Known`), and only if none fits the solver is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from math import isqrt
from typing import NamedTuple, Protocol, TypeVar

from ..graphs.errors import MemplanError
from ..graphs.graph import Graph
from ..graphs.machine import Machine, Memory
from ..graphs.units import duration, format_bytes
from ..planner.baseline import baseline, baseline_schedule
from ..planner.bounds import minimum_memory
from ..planner.errors import InvalidScheduleError
from ..planner.replay.ranking import by_seconds
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.simulate import Figures, Replay, figures_of, replay_of
from .accumulation import earlier_seconds, steps_of

_log = logging.getLogger(__name__)

TOLERANCE = 0.03
_MANY = 3
"""Known schedules from which on compiled code is faster, with what it needs of the graph."""
LARGEST = 2**20
"""Batches above are not tried: such a model needs next to no memory for a sample."""
STARTS = (1, 2, 4, 8)
"""Batches at which the search for the largest may start: batch normalisation, say, takes no single sample."""

Solve = Callable[[Graph, int], Schedule | None]
"""A function that returns a schedule of the graph within a budget (bytes); None if none is found. Raises
UnansweredError."""


class Unanswered(NamedTuple):
    """A question that a solver did not answer.

    reason: one line.
    fault: the solver failed; otherwise its time was over.
    """

    reason: str
    fault: bool


class UnansweredError(MemplanError):
    """A solver ended without an answer, which costs this question alone."""

    def __init__(self, reason: str, *, fault: bool = False) -> None:
        super().__init__(reason)
        self.unanswered = Unanswered(reason, fault)


@dataclass(frozen=True)
class BatchTrial:
    """A batch within a budget, solved or not.

    budget: bytes. min_memory: minimum memory of the batch, in bytes, for all schedules.
    baseline: a function that returns the figures of the baseline's last micro-batch, on a device of any size,
        and the seconds of those before it.
    schedule, figures: None if none was found.
    steps: micro-batches per update, of which the figures are the last's.
    earlier: seconds of those before the last, with this schedule.
    unanswered: why the solver had no answer, None if it had one.
    replay: what the figures are from; None: they are the baseline's.
    """

    batch: int
    budget: int
    min_memory: int
    baseline: Callable[[], tuple[Figures, float]] = field(compare=False, repr=False)
    schedule: Schedule | None = None
    figures: Figures | None = None
    unanswered: Unanswered | None = None
    steps: int = 1
    earlier: float = 0.0
    replay: Replay | None = field(default=None, compare=False, repr=False)

    @property
    def samples(self) -> int:
        """Samples of an update."""
        return self.steps * self.batch

    @property
    def seconds(self) -> float | None:
        """Seconds of an update: of all its micro-batches."""
        return None if self.figures is None else self.earlier + self.figures.time

    @property
    def baseline_figures(self) -> Figures:
        return self.baseline()[0]

    @property
    def baseline_seconds(self) -> float:
        figures, earlier = self.baseline()
        return earlier + figures.time

    @property
    def overhead(self) -> float | None:
        """Share by which an update takes longer than the baseline's."""
        if self.seconds is None:
            return None
        return self.seconds / self.baseline_seconds - 1.0 if self.baseline_seconds else 0.0

    @property
    def proven_infeasible(self) -> bool:
        return self.min_memory > self.budget

    @property
    def fits(self) -> bool:
        """Whether there is a schedule."""
        return self.schedule is not None

    @property
    def baseline_fits(self) -> bool:
        return self.baseline_figures.peak <= self.budget

    @property
    def samples_per_second(self) -> float | None:
        return self.samples / self.seconds if self.seconds else None


class Known:
    """Schedules found so far, for any batch and machine, each with its graph's number of operations."""

    def __init__(self) -> None:
        self._found: list[tuple[int, Schedule]] = []
        self._named: set[tuple[int, str]] = set()

    def add(self, graph: Graph, schedule: Schedule, name: str = "") -> None:
        self._found.append((len(graph.operations), schedule))
        self._named.add((len(graph.operations), name))

    def has(self, graph: Graph, name: str) -> bool:
        """Tell whether a schedule of this name was added for graphs of as many operations."""
        return (len(graph.operations), name) in self._named

    def best(self, graph: Graph, machine: Machine, budget: int) -> Schedule | None:
        """Return the fastest of the known schedules that this graph's sizes allow; None if there is none."""
        of_model = [schedule for operations, schedule in self._found if operations == len(graph.operations)]
        if len(of_model) >= _MANY and (ranked := by_seconds(graph, of_model, machine, budget)) is not None:
            for schedule in ranked:
                with suppress(InvalidScheduleError):
                    figures_of(graph, schedule, budget=budget, machine=machine)
                    return schedule
            return None
        replayed = self._replayed(graph, machine, budget)
        return min(replayed, key=lambda pair: pair[1].time, default=(None, None))[0]

    def least(self, graph: Graph, machine: Machine) -> tuple[Schedule, Figures]:
        """Return the known schedule that needs the least device memory, the baseline among them."""
        baseline_figures = baseline_schedule(graph), baseline(graph)
        replayed = self._replayed(graph, machine, None)
        return min((baseline_figures, *replayed), key=lambda pair: pair[1].least_budget)

    def _replayed(
        self, graph: Graph, machine: Machine, budget: int | None
    ) -> Iterator[tuple[Schedule, Figures]]:
        for operations, schedule in self._found:
            if operations == len(graph.operations):
                with suppress(InvalidScheduleError):
                    yield schedule, figures_of(graph, schedule, budget=budget, machine=machine)

    def before(self, machine: Machine, solve: Solve) -> Solve:
        """Return a solver that first tries the baseline, then the known schedules, the fastest first, then
        `solve`.

        What `solve` finds is known from then on.
        """

        def answer(graph: Graph, budget: int) -> Schedule | None:
            # Between ranks the baseline has no gathers: its figures are of no schedule.
            if not graph.communicates and baseline(graph).peak <= budget:
                return baseline_schedule(graph)
            found = self.best(graph, machine, budget)
            return self.noted(solve)(graph, budget) if found is None else found

        return answer

    def alongside(self, machine: Machine, solve: Solve) -> Solve:
        """Return a solver that gives what `solve` finds, or the fastest known schedule if that is faster."""

        def answer(graph: Graph, budget: int) -> Schedule | None:
            try:
                self.noted(solve)(graph, budget)
            except UnansweredError:
                if (found := self.best(graph, machine, budget)) is None:
                    raise
                return found
            return self.best(graph, machine, budget)

        return answer

    def noted(self, solve: Solve) -> Solve:
        """Return the solver, with what it finds known from then on."""

        def answer(graph: Graph, budget: int) -> Schedule | None:
            found = solve(graph, budget)
            if found is not None:
                self.add(graph, found)
            return found

        return answer


def trial(graph: Graph, machine: Machine, batch: int, budget: int, solve: Solve) -> BatchTrial:
    """Solve for a batch within a budget.

    The solver is not called if the budget is below the minimum memory.
    """
    asked = unsolved(graph, machine, batch, budget)
    try:
        schedule = None if asked.proven_infeasible else solve(graph, budget)
    except UnansweredError as error:
        return replace(asked, unanswered=error.unanswered)
    found = asked if schedule is None else _within(graph, machine, budget, replace(asked, schedule=schedule))
    what = "no schedule" if found.figures is None else duration(found.figures.time)
    _log.info("batch %d within %s: %s", batch, format_bytes(budget), what)
    return found


def unsolved(graph: Graph, machine: Machine, batch: int, budget: int) -> BatchTrial:
    """Return a batch within a budget as it is before a solver is called."""

    @cache
    def figures() -> tuple[Figures, float]:
        return baseline(graph), earlier_seconds(graph, baseline_schedule(graph), None, Machine())

    return BatchTrial(batch, budget, minimum_of(graph, machine), figures, steps=steps_of(graph))


def minimum_of(graph: Graph, machine: Machine) -> int:
    """Return the larger of `minimum_memory` and the resident bytes that no memory below can hold.

    Of spread tensors the ranks hold shares, which `minimum_memory` counts.
    """
    rest = graph.resident_bytes - graph.share_bytes
    for tier in machine.hierarchy.tiers[Memory.HOST :]:
        if tier.write is None or tier.read is None:
            break
        rest = 0 if tier.capacity is None else max(0, rest - tier.capacity)
    return max(rest, minimum_memory(graph, machine))


def smallest_budget(
    graph: Graph, machine: Machine, first: BatchTrial, solve: Solve, tolerance: float = TOLERANCE
) -> Iterator[BatchTrial]:
    """Yield better and better trials, down to nearly the smallest budget for which the solver finds a
    schedule.

    The last budget is at most `tolerance` above one for which no schedule was found.
    first: a trial with a schedule.
    """
    best, failed = tightened(graph, machine, first), first.min_memory - 1
    yield best
    while best.budget - failed > max(1.0, tolerance * failed):
        # The geometric mean, since the tolerance is relative: it halves the logarithm of the ratio.
        middle = max(failed + 1, isqrt(max(failed, 1) * best.budget))
        found = trial(graph, machine, first.batch, middle, solve)
        if found.schedule is None:
            failed = middle
        else:
            best = tightened(graph, machine, found)
            yield best


class Attempt(Protocol):
    """A batch that was tried."""

    @property
    def fits(self) -> bool: ...


A = TypeVar("A", bound=Attempt)


def largest_batch(attempt: Callable[[int], A], start: int = 1, tolerance: float = TOLERANCE) -> Iterator[A]:
    """Yield every batch that is tried: from `start` doubled while they fit, then by bisection.

    Bisection is between the last batch that fits and the first that does not, until none is left or they are
    within the tolerance.
    """
    fits, next_one, fails = start - 1, start, LARGEST + 1
    while fits < next_one < fails:
        found = attempt(next_one)
        yield found
        if found.fits:
            fits = next_one
        else:
            fails = next_one
        next_one = 2 * fits if fails > LARGEST else (fits + fails) // 2
        if fails <= LARGEST and fails - fits <= tolerance * fits:
            return


def given_batches(attempt: Callable[[int], BatchTrial], batches: Iterable[int]) -> Iterator[BatchTrial]:
    """Yield the trials of these batches, growing, until one is proven infeasible: a larger one takes no
    less."""
    for batch in sorted(set(batches)):
        found = attempt(batch)
        yield found
        if found.proven_infeasible:
            return


def tightened(graph: Graph, machine: Machine, found: BatchTrial) -> BatchTrial:
    """Return the same schedule within the smallest budget for which it is valid."""
    assert found.figures is not None
    return _within(graph, machine, found.figures.least_budget, found)


def _within(graph: Graph, machine: Machine, budget: int, found: BatchTrial) -> BatchTrial:
    assert found.schedule is not None
    known = _holds_baseline_figures(graph, machine) and found.schedule is baseline_schedule(graph)
    if known and baseline(graph).peak <= budget:
        replay, figures = None, baseline(graph)
    else:
        replay = replay_of(graph, found.schedule, budget=budget, machine=machine)
        figures = replay.figures
    earlier = earlier_seconds(graph, found.schedule, budget, machine)
    return replace(found, budget=budget, figures=figures, earlier=earlier, replay=replay)


def _holds_baseline_figures(graph: Graph, machine: Machine) -> bool:
    """Tell whether the baseline's figures are what the simulator would say of this machine."""
    deep = len(machine.hierarchy) > len(Memory)
    return not (graph.tensors.spread or deep) and machine.device_capacity is None
