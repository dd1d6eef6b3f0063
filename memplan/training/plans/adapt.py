"""Plans that are replaced while they train: by measured times, or as the solver goes on.

A plan whose solver was stopped at its first schedule is solved to the end in the background. If iterations
take longer or shorter than planned, they are timed:

    median 10 % off the plan's ──▶ some iterations note their own times ──▶ the same runs, transfers moved
                                                                       └──▶ re-solved, in the background

Each change happens between two iterations, and only the schedule changes: the operations and their
dependencies are the program's, so results keep their bits, and the simulator has counted the bytes. A change
that would gain less than `MARGIN` is not made. After each check the wait for the next one doubles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TypeVar
from weakref import WeakKeyDictionary

from ...graphs.errors import MemplanError
from ...graphs.machine import Machine
from ...graphs.units import format_bytes
from ...model.iteration import Iteration
from ...planner.bounds import time_bound
from ...planner.errors import InvalidScheduleError
from ...planner.residency.from_schedule import recover_residency
from ...planner.residency.prefetch_placement import place_prefetches
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.clock import link_of
from ...planner.simulator.simulate import simulate
from ...runtime.codegen.codegen import is_plain
from ...runtime.run.stopwatch import Times
from ...solvers.background import Background
from ...solvers.problem import Problem
from ...steps.execute import PlannedStep
from ...torch_support.out_of_memory import is_out_of_memory
from .drift import remeasured, slower, unevenness
from .plan import Planner
from .plan_cache import Plan
from .training_log import DRIFT, ENOUGH

Made = TypeVar("Made")

COUNTED_ITERATIONS = 5
"""Number of iterations that are timed."""

MARGIN = 0.02
"""Share of the time that another schedule must save."""

WORTH = 0.05
"""Share by which a plan must exceed its lower bound to be solved once more."""

SECONDS = 100.0
"""Time limit of the solver in the background, if `optimize` has none."""

SETTLED = 3
"""Iterations before the solver goes on in the background: a script that runs fewer does not start it."""


@dataclass
class Case:
    """State of the drift detection for one plan.

    seen: iterations since the last check; the next check comes after `wait` of them.
    left: iterations still to be timed.
    taken: seconds per iteration when the drift was found.
    solving: the solver in the background, while it runs.
    """

    wait: float = 0
    seen: int = 0
    left: int = 0
    taken: float = 0.0
    solving: Background | None = None


class Adapter:
    """Detection of drifting times for the plans of a step, and the changes that follow.

    on: whether plans are changed; if not, a drift is reported once.
    """

    def __init__(self, planner: Planner, *, on: bool) -> None:
        self._planner, self._book, self._on = planner, planner.book, on
        self._cases = WeakKeyDictionary[PlannedStep, Case]()

    def before(self, step: PlannedStep, iteration: Iteration) -> PlannedStep:
        """Return the plan for the iteration about to run: the step, or the faster one that replaces it.

        Raises MismatchError if the step would refuse the iteration.
        """
        case = self._cases.setdefault(step, Case())
        if case.left:
            case.left -= 1
            return step if case.left else self._timed(step, case, iteration)
        if case.solving is not None:
            return self._solved(step, case, iteration) if case.solving.ended.is_set() else step
        case.seen += 1
        if case.seen >= SETTLED and self._planner.improves and self._book.plan(step).improvable:
            case.solving = self._background(step, self._book.plan(step))
        elif case.seen > case.wait and (drift := self._book.drift(step)) is not None:
            self._drifted(step, case, *drift)
        return step

    def _drifted(self, step: PlannedStep, case: Case, taken: float, expected: float) -> None:
        self._report_drift(step, taken, expected)
        case.seen, case.wait, case.taken = 0, 2 * max(case.wait, ENOUGH), taken
        if self._on:
            step.begin_timing()
            case.left = COUNTED_ITERATIONS
        else:
            case.wait = inf

    def _report_drift(self, step: PlannedStep, taken: float, expected: float) -> None:
        off = f"{taken / expected - 1:+z.0%} against the plan's {expected:.3g} s"
        self._book.note(step, f"iterations take {taken:.3g} s, {off}")

    def _timed(self, step: PlannedStep, case: Case, iteration: Iteration) -> PlannedStep:
        times = step.end_timing()
        return step if times is None else self._adapted(step, case, iteration, times)

    def _adapted(self, step: PlannedStep, case: Case, iteration: Iteration, times: Times) -> PlannedStep:
        """Return the plan that replaces the step by measured times: the step, or one with other transfers."""
        plan = self._book.plan(step)
        machine = self._planner.machine_of(plan)
        uneven = unevenness(plan.graph, machine, times)
        plan = plan._replace(graph=remeasured(plan.graph, machine, times))
        now = self._planner.solving_machine(plan)
        figures = self._book.replanned(step, plan, now, case.taken)
        self._planner.keep(step, plan)
        self._planner.links = None if now is None or now.unpinned else now.links
        said = _links(times, machine)
        moved, fault = self._by_first(partial(_moved_schedule, plan, now, figures.time))
        said += [fault] if fault else []
        if uneven > DRIFT and figures.time > (1 + WORTH) * time_bound(plan.graph):
            said += ["replanned in the background"] if self._search(step, case, plan) else []
        if moved is None:
            self._book.note(step, "; ".join(["timed anew", *said]))
            return step
        faster = plan._replace(schedule=moved, policy="")
        return self._switched(step, case, iteration, faster, "; ".join([*said, "transfers moved"]))

    def _by_first(self, make: Callable[[], Made]) -> Made:
        """Return what the rank that plans makes."""
        return make()

    def _search(self, step: PlannedStep, case: Case, plan: Plan) -> bool:
        """Start the solver in the background. Returns whether it has started."""
        case.solving = self._background(step, plan)
        return case.solving is not None

    def _background(self, step: PlannedStep, plan: Plan) -> Background | None:
        """Solve a plan's graph in the background; None if the system has no thread for that."""
        options = self._planner.options
        problem = Problem(plan.graph, plan.budget, self._planner.solving_machine(plan), options.allow)
        try:
            return Background(options.solver, problem, options.time_limit or SECONDS, options.settings)
        except RuntimeError as error:  # it costs the search, not the training
            self._planner.improves = False
            self._book.note(step, f"no search in the background: {error}")
            return None

    def _solved(self, step: PlannedStep, case: Case, iteration: Iteration) -> PlannedStep:
        solving, case.solving = case.solving, None
        assert solving is not None
        return self._improved(step, case, iteration, solving.schedule, solving.fault)

    def _improved(
        self,
        step: PlannedStep,
        case: Case,
        iteration: Iteration,
        schedule: Schedule | None,
        fault: str | None,
    ) -> PlannedStep:
        """Return the plan after a search: the step, or one by the schedule that was found if it is faster.

        fault: why none was found.
        """
        self._book.afresh(step)  # while it was solved they had the processor to share
        said = "improved" if self._book.plan(step).improvable else "replanned"
        plan = self._book.solved(step)
        if fault is None:
            self._planner.keep(step, plan)
        now = self._planner.solving_machine(plan)
        before = self._book.figures(step).time
        faster = None if schedule is None else _faster(plan, now, schedule, before)
        if faster is None:
            self._book.note(step, f"{said}: {fault or 'nothing is faster'}")
            return step
        return self._switched(step, case, iteration, faster, said)

    def _switched(
        self, step: PlannedStep, case: Case, iteration: Iteration, plan: Plan, said: str
    ) -> PlannedStep:
        step.check_unchanged()
        try:
            made = self._planner.instead(iteration, step, plan)
        except Exception as error:
            if not isinstance(error, MemplanError) and not is_out_of_memory(error):
                raise
            self._book.note(step, f"{said}, but there is no room to change: {error}")
            return step
        expected = self._book.succeeded(step, made, plan, self._planner)
        self._cases[made] = Case(case.wait, solving=case.solving)
        self._planner.keep(made, plan)
        self._book.note(made, f"{said}: {expected:.3g} s expected")
        return made


def _moved_schedule(plan: Plan, machine: Machine | None, seconds: float) -> tuple[Schedule | None, str]:
    """Return the schedule of `_moved`, None if there is none, and the internal error of which that is."""
    try:
        moved = _moved(plan, machine, seconds)
    except Exception as error:  # it costs the change, not the training
        return None, f"transfers stay, {type(error).__name__}: {error}"
    return (None if moved is None else moved.schedule), ""


def _moved(plan: Plan, machine: Machine | None, seconds: float) -> Plan | None:
    """Return the plan with the same runs and offload intervals but other transfer times.

    None if that is not faster.
    """
    if machine is None or is_plain(plan.schedule):
        return None
    residency = recover_residency(plan.graph, plan.schedule)
    # Without slots place_prefetches chooses all transfer times anew, by the measured rates.
    residency = replace(residency, offload_slots={}, prefetch_slots={}, read_slots={})
    found = place_prefetches(plan.graph, machine, plan.budget, residency)
    return found and _faster(plan, machine, found[0], seconds)


def _faster(plan: Plan, machine: Machine | None, schedule: Schedule, seconds: float) -> Plan | None:
    """Return the plan with this schedule if it is valid and saves at least MARGIN of `seconds`, else None."""
    try:
        figures = simulate(plan.graph, schedule, budget=plan.budget, machine=machine).figures
    except InvalidScheduleError:
        return None
    return plan._replace(schedule=schedule, policy="") if figures.time < (1 - MARGIN) * seconds else None


def _links(times: Times, machine: Machine | None) -> list[str]:
    """Describe the links whose rates have drifted, in bytes/s of the measured copies with latencies."""
    said: list[str] = []
    for queue, copied in times.copied.items():
        link = machine and link_of(machine.hierarchy, queue)
        if link and abs((factor := slower(link, copied)) - 1) > DRIFT:
            now = copied.bytes / copied.seconds
            said.append(
                f"{queue.name.lower()} {format_bytes(int(now))}/s, not {format_bytes(int(now * factor))}/s"
            )
    return said
