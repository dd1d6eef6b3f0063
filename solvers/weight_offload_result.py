"""What the solvers that move weights share: the plain schedule where it fits, and the refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from ..graphs.machine import Machine
from ..planner.bounds import time_bound
from ..planner.errors import InvalidScheduleError
from ..planner.schedule import Schedule
from ..planner.simulate import simulate
from .chains import infeasible, plain_candidate
from .problem import Answer, NotAcceptedError, Problem, Status
from .weight_offload_cycle import Cycle, cycle_of
from .weight_offload_starts import lazy_order
from .weight_offload_steps import schedule_of_order


def solved(solver: str, problem: Problem, orders: Callable[[Cycle], Iterable[Schedule]]) -> Answer:
    """The plain schedule where it fits, else the fastest that `orders` gives for the cycle.

    Raises NotAcceptedError (no links, no weights, host too small), InfeasibleError.
    """
    cycle = cycle_of(solver, problem)
    plain = plain_candidate(problem.graph)
    if plain.peak <= cycle.limit:
        return Answer(plain.schedule, Status.OPTIMAL, time_bound(problem.graph))
    refuse_if_too_small(solver, problem, cycle)
    timed = (
        (seconds_of(problem, schedule), number, schedule) for number, schedule in enumerate(orders(cycle))
    )
    seconds, _number, schedule = min(timed)
    if seconds == inf:
        raise infeasible(solver, problem, least_budget(cycle))
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
    least = least_budget(cycle)
    if cycle.limit < least:
        raise infeasible(solver, problem, least)
    must_leave = max(need for need in cycle.need) + sum(cycle.sizes) - cycle.limit
    if cycle.host_limit is not None and cycle.host_limit < must_leave:
        raise NotAcceptedError(
            f"{solver} moves weights to the host, which holds {cycle.host_limit:,} bytes: "
            f"{must_leave:,} must leave the device"
        )


def least_budget(cycle: Cycle) -> int:
    """Bytes with which the schedule works that sends every weight away whenever it can."""
    everything = schedule_of_order(cycle, lazy_order(cycle, range(len(cycle.absences))))
    links = Machine(links=(cycle.machine).links)
    return simulate(cycle.graph, everything, machine=links).figures.least_budget
