"""Code shared by the solvers that move weights: the baseline if it fits, and the errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from ....planner.bounds import time_bound
from ....planner.errors import InvalidScheduleError
from ....planner.schedule.schedule import Schedule
from ....planner.simulator.simulate import simulate
from ...candidates import fitting_baseline, infeasible
from ...problem import NotAcceptedError, Options, Problem, SolverResult, Status
from ..cycles.cycle import Cycle, cycle_of
from .selection import moved_bytes


def solved(
    solver: str, problem: Problem, options: Options, schedules: Callable[[Cycle], Iterable[Schedule]]
) -> SolverResult:
    """Return the baseline if it fits, else the fastest of `schedules` for the cycle, within the time limit.

    Raises NotAcceptedError (no links, no weights, host too small), InfeasibleError.
    """
    cycle = cycle_of(solver, problem)
    if cycle.plain_peak <= cycle.limit:
        return fitting_baseline(problem)
    refuse_if_too_small(solver, problem, cycle)
    clock = options.clock()
    best, fastest = None, inf
    for schedule in schedules(cycle):
        seconds = seconds_of(problem, schedule)
        if seconds < fastest:
            best, fastest = schedule, seconds
        # After the comparison: at least one schedule is looked at, however short the time.
        if best is not None and clock.expired:
            break
    if best is None:
        raise host_too_small(solver, cycle)
    return SolverResult(best, Status.HEURISTIC, time_bound(problem.graph))


def seconds_of(problem: Problem, schedule: Schedule) -> float:
    """Return the simulated seconds; ∞ if the simulator finds the schedule invalid."""
    try:
        replay = simulate(problem.graph, schedule, budget=problem.budget, machine=problem.machine)
    except InvalidScheduleError:
        return inf
    return replay.figures.time


def refuse_if_too_small(solver: str, problem: Problem, cycle: Cycle) -> None:
    """Raise an error if the device is too small for any choice, or the host for what must be offloaded at
    least.

    The least budget is named only if the host holds all that can leave.
    """
    if cycle.limit < cycle.least_budget:
        everything = moved_bytes(cycle, range(len(cycle.intervals)))
        roomy = cycle.host_limit is None or cycle.host_limit >= everything
        raise infeasible(solver, problem, cycle.least_budget if roomy else None)
    if cycle.host_limit is not None and cycle.host_limit < must_leave(cycle):
        raise host_too_small(solver, cycle)


def must_leave(cycle: Cycle) -> int:
    """Return the least bytes of weights that must be offloaded at the run that needs most."""
    # `need` counts no weight that may move: all of them besides would exceed the limit by so much.
    return max(0, max((cycle.idle, *cycle.need)) + sum(cycle.sizes) - cycle.limit)


def host_too_small(solver: str, cycle: Cycle) -> NotAcceptedError:
    unused, limit = cycle.unused_bytes, cycle.host_limit or 0
    room = f"{limit + unused:,} bytes are free for them"
    if limit == cycle.machine.pinned:
        room, unused = f"{limit:,} bytes can be pinned for them", 0
    least = must_leave(cycle) + unused
    why = f"at least {least:,} bytes must leave the device" if least > limit + unused else "it moves more"
    return NotAcceptedError(f"{solver} moves weights to the host, where {room}: too few, {why}")
