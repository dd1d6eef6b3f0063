"""The smallest budget that a refusal names: one with a schedule that holds, so that it suffices.

Members refuse with the schedule of least memory that they found. The baseline is one more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ...graphs.machine import Machine
from ...planner.baseline import baseline_schedule
from ...planner.bounds import minimum_memory
from ...planner.errors import InvalidScheduleError
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import figures_of
from ..candidates import device_limit
from ..problem import InfeasibleError, NotFoundError, Problem


def refusal_of(
    name: str, problem: Problem, refusals: Sequence[InfeasibleError], faults: Sequence[str] = ()
) -> InfeasibleError:
    """Return the error of a portfolio: NotFoundError if no member came to its end.

    refusals: of its members. faults: notes, a line each.
    """
    limit, min_memory = device_limit(problem), minimum_memory(problem.graph, problem.machine)
    within = list(_within(problem, refusals))
    smallest, schedule = min(within, key=lambda found: found[0], default=(None, None))
    ended = limit < min_memory or any(
        refusal.least is not None and refusal.least > limit for refusal in refusals
    )
    if ended:
        refusal = InfeasibleError(name, limit, smallest, min_memory)
    else:
        refusal = NotFoundError(name, limit, min_memory, smallest)
    refusal.notes = tuple(faults)
    return refusal.holding(schedule)


def _within(problem: Problem, refusals: Sequence[InfeasibleError]) -> Iterator[tuple[int, Schedule]]:
    """Yield the schedules that are known, with the smallest budget in bytes with which each holds."""
    graph, machine = problem.graph, problem.machine or problem.graph.machine or Machine()
    schedules = [refusal.schedule for refusal in refusals if refusal.schedule is not None]
    if not graph.tensors.spread:  # the baseline has no network
        schedules.append(baseline_schedule(graph))
    for schedule in schedules:
        with suppress(InvalidScheduleError):
            figures = figures_of(graph, schedule, machine=replace(machine, device_capacity=None))
            if figures.least_budget > device_limit(problem):
                yield figures.least_budget, schedule
