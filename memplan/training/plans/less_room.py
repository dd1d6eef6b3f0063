"""Plans for a host or a disk that turns out to have less room than the machine says.

What is free is not known before a plan is made, and changes. The step that can't have what its plan needs
says what is there; the same graph is solved for that, within the same budget of the device.
"""

from __future__ import annotations

from collections.abc import Callable

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

    Returns the step with its plan. Raises ShortageError if there is no plan for what is there.
    """
    for last in (False, False, True):  # others may take more of it meanwhile
        try:
            return make(plan), plan
        except ShortageError as error:
            known = error.available is not None and planner.machine_of(plan) is not None
            if last or not known or not iteration.alone:
                raise
            plan = _within_room(planner, iteration, plan, error)
    raise AssertionError("an internal error: the last try returns or raises")


def _within_room(planner: BudgetedPlanner, iteration: Iteration, plan: Plan, error: ShortageError) -> Plan:
    """Return a plan for what is available of the memory that the error names. Raises ShortageError."""
    try:
        made = planner.solved(planner.on_less(plan, error.memory, error.available or 0), iteration)
    except InfeasibleError:
        text = f"{error}, and no plan for so little was found: free some, or give a larger budget"
        raise ShortageError.of(error.memory, text) from None
    now, before = (duration(_seconds(planner, one)) for one in (made, plan))
    warn_user(f"{error}: planned for those, {now} an iteration instead of {before}")
    return made


def _seconds(planner: BudgetedPlanner, plan: Plan) -> float:
    return simulate(plan.graph, plan.schedule, machine=planner.solving_machine(plan)).figures.time
