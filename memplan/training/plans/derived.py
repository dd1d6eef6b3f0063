"""Plans for new shapes by the schedules of those for other shapes, without a search.

    new shape ──trace──▶ program ──structure of a plan that trains already?──▶ its schedule at the new bytes
                            └── no: does all fit if it is kept? ──▶ all is kept, and compared
                                                 └── no: measured, solved and compared, as the first one

The iteration is traced itself, whatever its shape, so a branch by lengths is followed. If it has the
operations of a plan that was compared with eager PyTorch, in the same order, and only numbers are others, the
comparison holds for it too: it makes the same calls. The simulator validates the schedule at the new bytes,
which are measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graphs.machine import Machine
from ...planner.baseline import baseline_schedule
from ...planner.errors import InvalidScheduleError
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import simulate
from .plan_cache import Plan


def transferred(plan: Plan, others: Sequence[Plan], machine: Machine | None) -> Plan | None:
    """Return the plan with the fastest schedule of others that is valid for it, None if none is.

    The schedule that keeps everything counts too. The plan is improvable if it recomputes or moves anything.

    plan: with its graph and budget.
    others: plans of the same structure; none if there is only the schedule that keeps everything.
    machine: the machine, if the plan's graph names none.
    """
    found: list[tuple[float, int, Schedule]] = []
    baseline = baseline_schedule(plan.graph)
    for schedule in (baseline, *(other.schedule for other in others)):
        try:
            figures = simulate(plan.graph, schedule, budget=plan.budget, machine=machine).figures
        except InvalidScheduleError:
            continue
        # The number decides between equal times: schedules have no order, and the baseline is first.
        found.append((figures.time, len(found), schedule))
    if not found:
        return None
    _seconds, _number, schedule = min(found)
    return plan._replace(schedule=schedule, improvable=schedule is not baseline)
