"""What the solvers that move weights share: the plain schedule where it fits, and the refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from ..planner.bounds import time_bound
from ..planner.errors import InvalidScheduleError
from ..planner.plain import plain_schedule
from ..planner.schedule import Schedule
from ..planner.simulate import simulate
from .chains import infeasible
from .problem import Answer, NotAcceptedError, Problem, Status
from .weight_offload_cycle import Cycle, cycle_of


def solved(solver: str, problem: Problem, orders: Callable[[Cycle], Iterable[Schedule]]) -> Answer:
    """The plain schedule where it fits, else the fastest that `orders` gives for the cycle.

    Raises NotAcceptedError (no links, no weights, host too small), InfeasibleError.
    """
    cycle = cycle_of(solver, problem)
    if cycle.plain_peak <= cycle.limit:
        return Answer(plain_schedule(problem.graph), Status.OPTIMAL, time_bound(problem.graph))
    refuse_if_too_small(solver, problem, cycle)
    timed = (
        (seconds_of(problem, schedule), number, schedule) for number, schedule in enumerate(orders(cycle))
    )
    seconds, _number, schedule = min(timed)
    if seconds == inf:
        raise infeasible(solver, problem, cycle.least_budget)
    return Answer(schedule, Status.HEURISTIC, time_bound(problem.graph))


def seconds_of(problem: Problem, schedule: Schedule) -> float:
    """∞ where the simulator refuses it."""
    try:
        replay = simulate(problem.graph, schedule, budget=problem.budget, machine=problem.machine)
    except InvalidScheduleError:
        return inf
    return replay.figures.time


def refuse_if_too_small(solver: str, problem: Problem, cycle: Cycle) -> None:
    """The device, even if every weight leaves whenever it can; the host, for what must leave at least."""
    if cycle.limit < cycle.least_budget:
        raise infeasible(solver, problem, cycle.least_budget)
    must_leave = max(cycle.need) + sum(cycle.sizes) - cycle.limit
    if cycle.host_limit is not None and cycle.host_limit < must_leave:
        raise NotAcceptedError(
            f"{solver} moves weights to the host, which holds {cycle.host_limit:,} bytes: "
            f"{must_leave:,} must leave the device"
        )
