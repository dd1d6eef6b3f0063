"""Programs planned within the budget of one step: measured, then solved.

program ──▶ times, bytes ──▶ graph ──▶ the bytes that a plan may take ──▶ schedule
                                       less what the loop has outside of it (loop_memory.py)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

import numpy as np

from ...devices.device.choice import device_of
from ...graphs.errors import InputError
from ...graphs.graph import Graph, Phase
from ...graphs.machine import Links, Machine, Memory, with_capacities
from ...model.iteration import Iteration
from ...planner.baseline import baseline, baseline_schedule
from ...planner.device_memory import DeviceMemory
from ...planner.simulator.simulate import simulate
from ...profiling.compare.compiled import Compiled
from ...profiling.fusion.choice import COMPILED, chosen
from ...profiling.profile.profile import graph_from
from ...profiling.splitting.exact import Exactness
from ...profiling.splitting.split import EXACT, Split
from ...program.program import Program
from ...runtime.run.changes import changed_residents
from ...solvers.incumbent import Incumbent, gap
from ...solvers.problem import InfeasibleError, Problem, Status
from ...solvers.registry.kept import keep_for_retry, kept_schedule
from ...solvers.registry.run import solve_or_unpin as solve
from ...solvers.splits import fastest
from ...torch_support.unsupported import warn_user
from ...tracing.output_layouts import residents
from ...updates.buckets import buckets_of
from ...updates.counts import count_bytes
from ...updates.early import coefficient_bytes, updates_early, with_undo
from ..options import Options
from .front_end import FrontEnd, Measured
from .infeasible import ABOUT, explain, name_smallest
from .loop_memory import LoopMemory, StepInfeasibleError
from .old_gradients import machine_for, may_pay, pays
from .plan_cache import Plan
from .splits import smallest_in_pieces, split_programs
from .training_log import TrainingLog

_log = logging.getLogger(__name__)

AUTO = "auto"
"""The default solver, which can be hurried."""

FORWARD = AUTO
"""Solver of forward passes: they have no backward, which solvers for training look for."""

LEAST_PATIENCE = 1.0
"""Seconds that a solver always gets."""

MOST_PATIENCE = 60.0
"""Seconds of planning after which the solver's best is enough, without a time limit or gap."""

IMPROVED_PATIENCE = 10.0
"""Seconds after which it is enough if a better schedule may replace it while it trains."""

REFUSED = "refused"
"""Folder in that of the plan cache: schedules of budgets that refusals name."""

IMPROVED_MEASURING = 5.0
"""Seconds of measuring after the first round, if iterations that drift are timed anew while they train."""


@dataclass
class BudgetedPlanner:
    """Solver of the programs of one step, which share options, budget and measured times.

    front_end: traces and measures programs.
    bytes: the budget; None until the first plan, to whose baseline a share refers.
    outside: bytes of the budget that are on the device but are not the plans'.
    library_bytes: of the budget, what libraries keep on the device, and the optimizer besides its states.
    limit: bytes of plans made before more was found to be outside of them; None if none was.
    calls: number of iterations that may be between their halves at once, and share the budget.
    links: the machine's links by the times of iterations, for later plans.
    capacities: bytes of the memories that had less room than the machine says, for later plans.
    improves: whether plans are improved while they train (adapt.py), so that a first one may be found fast.
    """

    options: Options
    book: TrainingLog
    front_end: FrontEnd = field(default_factory=FrontEnd)
    links: Links | None = None
    capacities: dict[Memory, int] = field(default_factory=dict[Memory, int])
    bytes: int | None = None
    outside: LoopMemory = field(default_factory=LoopMemory)
    library_bytes: int = 0
    limit: int | None = None
    improves: bool = False
    calls: int = 1

    def leave_room(self, more: LoopMemory) -> None:
        """Have plans leave room from now on for what the loop has outside of them."""
        before, self.outside = self.outside, more
        if self.bytes is not None:
            self.bytes = self.limit = self.bytes - (more.bytes - before.bytes)

    def budget_around(self, plan: Plan) -> DeviceMemory:
        """State the budget that a plan is within, with what it holds outside of the plan."""
        return self.around(plan.graph, self.bytes or plan.budget)

    def peak_around(self, plan: Plan, peak: int) -> DeviceMemory:
        """State the peak of a loop whose plan has this one: of the iteration, or of the optimizer's step."""
        around = self.around(plan.graph, peak)
        if _is_forward(plan.graph):  # what training leaves is there: the plan has got less for it
            return around.at_least(around.total + max(0, (self.bytes or 0) - plan.budget))
        return around.at_least(self.outside.needed(plan.program) + self.library_bytes)

    def around(self, graph: Graph, size: int) -> DeviceMemory:
        """State the loop's memory around so many bytes of an iteration. What is resident is there once."""
        others = (self.calls - 1) * (size - graph.resident_bytes)
        return self.outside.around(size, others + self.library_bytes)

    def _solver(self, iteration: Iteration) -> str:
        return self.options.solver if iteration.trains else FORWARD

    def machine_of(self, plan: Plan) -> Machine | None:
        """Return the machine of a plan: with measured rates if iterations have drifted, else as requested."""
        return plan.graph.machine or self.options.machine

    def solving_machine(self, plan: Plan) -> Machine | None:
        """Return a plan's machine with the host memory that the journal of its iterations leaves."""
        machine = self.machine_of(plan)
        kept = self.kept_bytes(plan)
        if machine is None or machine.host_capacity is None or not kept:
            return machine
        return replace(machine, host_capacity=max(0, machine.host_capacity - kept))

    def kept_bytes(self, plan: Plan) -> int:
        """Return the bytes of host memory that the journal takes if iterations can be undone, else 0."""
        if not (self.options.rollback_on_error or updates_early(plan.program)):
            return 0
        return sum(plan.program.storages[x].bytes for x in changed_residents(plan.program))

    def on_less(self, plan: Plan, memory: Memory, size: int) -> Plan:
        """Return the plan on its machine with so many bytes there for schedules, as all later ones have."""
        machine = self.machine_of(plan)
        assert machine is not None
        if memory == Memory.HOST:
            size += self.kept_bytes(plan)
        self.capacities[memory] = size
        return plan._replace(graph=replace(plan.graph, machine=with_capacities(machine, {memory: size})))

    def solved(self, plan: Plan, iteration: Iteration) -> Plan:
        """Solve the plan's graph on its machine within its budget. Raises InfeasibleError."""
        return self._solved(plan, iteration, plan.budget)

    def _made(self, iteration: Iteration, program: Program, size: int | None) -> Plan:
        """Measure the program and solve its graph. Raises MemplanError.

        size: the budget in bytes; None for the first plan's, of which the options say it.
        """
        limit = IMPROVED_MEASURING if self.improves else None
        measured = self.front_end.measured(iteration, program, self.book, limit)
        if updates_early(measured.program):
            moves = self.options.machine is not None or bool(buckets_of(measured.program))
            found = with_undo(measured.measurements, measured.program, moves=moves)
            measured = Measured(measured.program, found, graph_from(measured.program, found))
        program, graph = measured.program, measured.graph
        budget = self._first_budget(graph, program, iteration) if size is None else size
        try:
            return self._roomier(iteration, partial(self._chosen, iteration, measured), budget)
        except InfeasibleError as error:
            if not self.front_end.explains:
                raise
            raise self._explained(error, iteration, program, graph) from None

    def _explained(
        self, error: InfeasibleError, iteration: Iteration, program: Program, graph: Graph
    ) -> InfeasibleError:
        """Return the error of a plan for budgets of a call, without the bytes outside of plans."""
        machine = graph.machine or self.options.machine
        smallest = None
        if self.options.split and iteration.trains:
            smallest = smallest_in_pieces(program, graph, self._exactness(program, iteration))
        problem = Problem(smallest or graph, error.budget, machine, self.options.allow)
        if isinstance(error, StepInfeasibleError):
            name_smallest(error, problem, about=1.0 if smallest is None else ABOUT)
            self._keep_for_retry(self._solver(iteration), problem, error)
        error = self._with_calls(error, graph)
        if self.options.budget.size is None and iteration.trains:
            error.state_shares(self._whole_peak(graph, program))
        # Other ways out are estimated from the graph of one process.
        if iteration.trains and self.calls == 1 and iteration.ranks is None:
            explain(
                error,
                problem,
                whole=graph,
                outside=self.outside,
                program=program,
                iteration=iteration,
                options=self.options,
            )
        return error

    def _exactness(self, program: Program, iteration: Iteration) -> Exactness | None:
        """Return what tells which regions in pieces have eager PyTorch's bits; None if they need not."""
        return Exactness(program, residents(program, iteration)) if self.options.split == EXACT else None

    def _with_calls(self, error: InfeasibleError, graph: Graph) -> InfeasibleError:
        """Return the error for budgets of all calls and libraries; LoopMemory.added_to adds the rest."""
        outside = self.outside.bytes
        return error.for_budgets(lambda size: self.around(graph, size).total - outside)

    def _keep_for_retry(self, solver: str, problem: Problem, error: InfeasibleError) -> None:
        folder = self.options.cache
        keep_for_retry(solver, problem, error, None if folder is None else folder / REFUSED)

    def _roomier(self, iteration: Iteration, choose: Callable[[int], Plan], budget: int) -> Plan:
        """Return the plan, with old gradients on the host if that is faster. Raises InfeasibleError.

        choose: makes a plan within so many bytes.
        """
        outside, plan, refusal = self.outside, None, None
        try:
            plan = choose(budget)
        except InfeasibleError as error:
            refusal = error
        machine = machine_for(iteration, outside, self.options)
        if machine is not None and may_pay(outside, machine, plan):
            self.leave_room(outside._replace(offloaded=True))
            try:
                roomier = choose(budget + outside.gradients)
                if pays(outside, machine, plan, roomier):
                    return roomier
            except InfeasibleError:
                if plan is None:  # its smallest budget is the smaller one
                    raise
            self.leave_room(outside)
        if plan is None:
            assert refusal is not None
            raise refusal
        return plan

    def _chosen(self, iteration: Iteration, measured: Measured, budget: int) -> Plan:
        """Return the plan, with compiled kernels if they are requested. Raises InfeasibleError."""
        program, measurements, graph = measured
        if iteration.trains:
            self.outside.check_step(program, budget)
        plan = self._unsolved(program, graph, budget)
        if self.options.split:
            return self._fastest_split(plan, iteration, measured, budget)
        if not self.options.compile:
            return self._solved(plan, iteration, budget)
        with self.book.phase("compile"):
            found = chosen(program, measurements, self.book.compiled)
        graph = graph_from(found.program, found.measured, source={COMPILED: found.groups})
        fused = self._unsolved(found.program, graph, budget)
        try:
            return self._solved(fused._replace(compiled=Compiled(program, found.kernels)), iteration, budget)
        except InfeasibleError as error:
            made = self._solved(plan, iteration, budget)
            warn_user(f"planned without compiled operations: with them there is {error}")
            return made

    def _fastest_split(self, plan: Plan, iteration: Iteration, measured: Measured, budget: int) -> Plan:
        """Return the fastest plan with or without regions in pieces. Raises InfeasibleError."""
        program, measurements, whole = measured
        exact = self._exactness(program, iteration)
        is_exact = exact is not None

        def in_pieces() -> Iterator[tuple[Graph, Split]]:
            room, tensors = budget - whole.resident_bytes, residents(program, iteration)
            for found, costs in split_programs(program, measurements, tensors, room, exact):
                yield graph_from(found.program, costs, source=found.source(exact=is_exact)), found

        def solve(graph: Graph, split: Split | None) -> tuple[float, Plan]:
            asked = plan
            if split is not None:
                compiled = Compiled(program, split.kernels, is_exact)
                asked = self._unsolved(split.program, graph, budget)._replace(compiled=compiled)
            made = self._solved(asked, iteration, budget)
            machine = self.machine_of(made)
            return simulate(made.graph, made.schedule, machine=machine).figures.time, made

        return fastest(whole, in_pieces(), solve, exact=is_exact)

    def _first_budget(self, graph: Graph, program: Program, iteration: Iteration) -> int:
        """Return the bytes that the iteration may take.

        A budget in bytes includes what libraries keep on the device, and the optimizer in addition to its
        states. The baseline's peak, to which a share refers, does not: it is that of the whole loop, with
        what is outside of plans, and with the optimizer's step.
        """
        kept, extra, resident = self.library_bytes, self.outside.bytes, graph.resident_bytes
        budget = self.options.budget.bytes_of(self._whole_peak(graph, program), resident + extra) - extra
        if 0 < budget <= kept:
            raise InputError(f"of {budget:,} B libraries keep {kept:,} B: nothing is left to plan in")
        # What is resident is there once; all else, of each of the calls.
        return resident + (budget - kept - resident) // self.calls

    def _count_libraries(self, iteration: Iteration, program: Program) -> None:
        """Count the bytes of a budget in bytes that no plan has. A share is of a peak without them."""
        if self.options.budget.size is None or (self.bytes is not None and not iteration.trains):
            return  # an evaluation's budget is what training has left
        updates, device = iteration.updates, device_of(program.device)
        counts = count_bytes(updates.optimizer, device) if updates else 0
        self.library_bytes = device.constant_bytes() + counts + coefficient_bytes(program, device)

    def _whole_peak(self, graph: Graph, program: Program) -> int:
        """Return the peak of the loop whose plan keeps everything."""
        resident = graph.resident_bytes
        together = resident + self.calls * (baseline(graph).peak - resident)
        return max(together + self.outside.bytes, self.outside.needed(program))

    def _unsolved(self, program: Program, graph: Graph, budget: int) -> Plan:
        """Return the baseline as a plan, on the machine as iterations have found it."""
        machine = graph.machine or self.options.machine  # of ranks, this one's part of its node
        if machine is not None and (self.links is not None or self.capacities):
            machine = replace(machine, links=self.links or machine.links)
            graph = replace(graph, machine=with_capacities(machine, self.capacities))
        return Plan(program, graph, baseline_schedule(graph), budget)

    def _solved(self, plan: Plan, iteration: Iteration, budget: int) -> Plan:
        """Solve the iteration's graph, which the plan has, for this budget in bytes.

        Without a time limit or gap `auto` stops once there is a schedule and its patience is over.
        """
        solver, improves = self._solver(iteration), self.improves and iteration.trains
        _log.info("budget %s", self.around(plan.graph, budget))
        machine = self.machine_of(plan)
        within = budget if machine is None else budget - plan.program.handed_over_bytes
        less = self.solving_machine(plan)
        problem, tell = Problem(plan.graph, within, less, self.options.allow), self.book.solving
        folder = self.options.cache
        folder = None if folder is None else folder / REFUSED
        # Each rank solves for itself: what one of them has kept, the others may not have.
        start = None if iteration.processes is not None else kept_schedule(solver, problem, folder)
        hurried = solver == AUTO and self.options.time_limit is None and self.options.gap is None
        race = Incumbent(self._patience(improves=improves) if hurried else inf)
        try:
            with self.book.phase("solve"):  # no lower bound is reported, so none is computed
                solution = solve(
                    solver,
                    problem,
                    self.options.time_limit,
                    self.options.settings,
                    report=tell,
                    bound_seconds=0,
                    race=race,
                    start=start,
                )
        except InfeasibleError as error:
            self._keep_for_retry(solver, problem, error)
            raise
        stopped = hurried and solution.status not in (Status.OPTIMAL, Status.WITHIN_GAP)
        if stopped:
            self.book.remark("solve", _stopped(race, improves=improves))
        graph = plan.graph
        if solution.machine is not problem.machine:
            warn_user(solution.notes[0])
            capacity = machine and machine.host_capacity
            found = solution.machine and replace(solution.machine, host_capacity=capacity)
            graph = replace(graph, machine=found)
        return plan._replace(
            graph=graph,
            schedule=solution.schedule,
            budget=budget,
            improvable=stopped and improves,
            policy=solution.policy,
        )

    def _patience(self, *, improves: bool) -> float:
        """Return the seconds after which the solver's best is enough.

        If it is improved while it trains they are as many as trace and measurements took.
        """
        before = self.book.setup_seconds
        seconds = min(before, IMPROVED_PATIENCE) if improves else MOST_PATIENCE - before
        return max(LEAST_PATIENCE, seconds)


def _stopped(race: Incumbent, *, improves: bool) -> str:
    """Return the line about a search that was stopped before its end."""
    off = gap(race.best, race.bound)
    far = f", at most {off:z.1%} slower than the fastest there can be" if race.bound > 0 else ""
    then = ": it is improved while it trains" if improves else ""
    return f"the first schedule found is used{far}{then}"


def _is_forward(graph: Graph) -> bool:
    """Tell whether the graph is of a forward pass alone."""
    return not np.isin(graph.operations.phase, (Phase.BACKWARD, Phase.UPDATE)).any()
