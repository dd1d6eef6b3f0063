"""A schedule known before a search: the incumbent from the beginning, the answer if none is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...graphs.errors import InputError
from ...graphs.machine import Machine
from ...planner.budget import spelled
from ...planner.errors import InvalidScheduleError
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import Figures, figures_of
from ..candidates import device_limit
from ..incumbent import Incumbent
from ..problem import InfeasibleError, Problem, SolverResult, Status

UNIMPROVED = "nothing faster than the start was found: the answer is the start"


def without_start(notes: Sequence[str]) -> tuple[str, ...]:
    """Return the notes of a solution whose start the user did not give."""
    return tuple(note for note in notes if note != UNIMPROVED)


def start_figures(problem: Problem, start: Schedule) -> Figures:
    """Return the figures of a start. Raises InputError if it is no schedule within the problem's budget."""
    limit, machine = device_limit(problem), problem.machine or problem.graph.machine or Machine()
    try:
        figures = figures_of(problem.graph, start, machine=replace(machine, device_capacity=None))
        if figures.least_budget <= limit:
            return figures_of(problem.graph, start, budget=limit, machine=problem.machine)
    except InvalidScheduleError as error:
        raise InputError(f"the start is no schedule of this graph and machine: {error}") from None
    raise InputError(
        f"the start needs {spelled(figures.least_budget)} of the device, the budget is {spelled(limit)}: "
        "give a larger budget, or leave the start out"
    )


def solve_from(
    start: Schedule,
    figures: Figures,
    gap: float,
    race: Incumbent,
    solve: Callable[[], tuple[SolverResult, Figures]],
) -> tuple[SolverResult, Figures]:
    """Solve, and return the start with its figures if the solver finds nothing faster.

    gap: at which the solver may stop; the start counts in the race before the solver begins.
    """
    race.found(figures.time, "start")
    try:
        answer, found = solve()
    except (InfeasibleError, KeyboardInterrupt) as ending:
        status = Status.WITHIN_GAP if race.enough(figures.time, gap) else Status.FEASIBLE
        stopped = isinstance(ending, KeyboardInterrupt)
        notes = (UNIMPROVED,) if not isinstance(ending, InfeasibleError) else (*ending.notes, UNIMPROVED)
        return SolverResult(start, status, race.bound or None, stopped, notes=notes), figures
    if found.time <= figures.time:
        return answer, found
    # a proof of the solver is of its own formulation, which the start does not keep
    status = answer.status if answer.status is Status.WITHIN_GAP else Status.FEASIBLE
    notes = (*answer.notes, UNIMPROVED)
    return replace(answer, schedule=start, status=status, effort=None, notes=notes), figures
