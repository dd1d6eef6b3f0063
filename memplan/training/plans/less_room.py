"""Plans for a host or a disk that turns out to have less room than the machine says.

What is free is not known before a plan is made, and changes. The step that can't have what its plan needs
says what is there; the same graph is solved for that, within the same budget of the device. Ranks that run
one plan have it for the room of the one that has least.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...devices.storage.shortage import ShortageError
from ...graphs.units import duration
from ...model.iteration import Iteration
from ...planner.simulator.simulate import simulate
from ...solvers.problem import InfeasibleError
from ...steps.execute import PlannedStep
from ...torch_support.unsupported import warn_user
from .budgeted import BudgetedPlanner
from .plan_cache import Plan


def fitting_step(
    planner: BudgetedPlanner, iteration: Iteration, plan: Plan, make: Callable[[Plan], PlannedStep]
) -> tuple[PlannedStep, Plan]:
    """Make the step of a plan, or of one that needs less of the host or the disk if that has no room.

    Returns the step with its plan. Raises ShortageError, on all ranks, if there is no plan for what is there.
    """
    for last in (False, False, True):  # others may take more of it meanwhile
        try:
            return _made_on_all(iteration, partial(make, plan)), plan
        except ShortageError as error:
            if last or error.available is None or planner.machine_of(plan) is None:
                raise
            plan = _within_room(planner, iteration, plan, error)
    raise AssertionError("an internal error: the last try returns or raises")


def _made_on_all(iteration: Iteration, make: Callable[[], PlannedStep]) -> PlannedStep:
    """Return the step that `make` makes. Raises ShortageError, for one memory and size on all ranks, if a
    rank has no room.
    """
    ranks, short = iteration.group, None

    def attempt() -> PlannedStep | None:
        nonlocal short
        try:
            return make()
        except ShortageError as error:
            short = error.with_traceback(None)  # its frames would hold what was made so far
            return None

    step = ranks.together(attempt)
    found = {rank: error for rank, error in enumerate(ranks.gathered(short)) if error is not None}
    if step is not None and not found:
        return step
    del step  # its memory is for the one that replaces it
    first = min(found)
    memory, line = found[first].memory, f"rank {first} of {ranks.size}: {found[first]}"
    rooms = [each.available for each in found.values() if each.memory == memory]
    known = [room for room in rooms if room is not None]
    raise ShortageError.of(
        memory, line if short is None else f"{short}", min(known) if known == rooms else None
    )


def _within_room(planner: BudgetedPlanner, iteration: Iteration, plan: Plan, error: ShortageError) -> Plan:
    """Return a plan for what is available of the memory that the error names. Raises ShortageError."""

    def solve() -> Plan:
        return planner.solved(planner.on_less(plan, error.memory, error.available or 0), iteration)

    try:
        made = planner.front_end.by_first(iteration, plan.program, solve)
    except InfeasibleError:
        text = f"{error}, and no plan for so little was found: free some, or give a larger budget"
        raise ShortageError.of(error.memory, text) from None
    now, before = (duration(_seconds(planner, one)) for one in (made, plan))
    warn_user(f"{error}: planned for those, {now} an iteration instead of {before}")
    return made


def _seconds(planner: BudgetedPlanner, plan: Plan) -> float:
    return simulate(plan.graph, plan.schedule, machine=planner.solving_machine(plan)).figures.time
