"""A plan for one shape: the iteration is traced, measured and solved, or found on disk; then verified."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..graphs.errors import InputError
from ..graphs.graph import Graph
from ..graphs.machine import Links, Machine
from ..planner.baseline import baseline, baseline_schedule
from ..planner.simulator.part import part_of
from ..runtime.calls.collectives import groups_of
from ..runtime.collector import collector_off
from ..runtime.compare.compiled import Compiled
from ..runtime.compare.signature import grounds
from ..runtime.device.choice import device_of
from ..runtime.fusion.choice import COMPILED, chosen
from ..runtime.measuring.live_bytes import check_profiler
from ..runtime.measuring.measure import Measurement
from ..runtime.model.iteration import Iteration
from ..runtime.profile.fused_updates import fused_hint
from ..runtime.profile.part import graph_of_part
from ..runtime.profile.profile import graph_from, measure_program
from ..runtime.profile.rounds import busy_line, uncertainty
from ..runtime.profile.sampled import Samples
from ..runtime.program.program import Program
from ..runtime.program.structure import structure
from ..runtime.run.cycle import Terms
from ..runtime.run.execute import PlannedStep
from ..runtime.run.part import PlannedPart
from ..runtime.trace.output_layouts import residents, trace_real_layouts
from ..runtime.trace.trace import trace
from ..runtime.unsupported import warn_user
from ..runtime.updates.averages import averaged, with_talks
from ..runtime.updates.parts import Part, adding, updating
from ..runtime.updates.state import count_bytes
from ..solvers.incumbent import Incumbent, gap
from ..solvers.problem import InfeasibleError, Problem, Status
from ..solvers.registry.run import solve_or_unpin as solve
from .derived import transferred
from .infeasible import explain
from .loop_memory import LoopMemory
from .old_gradients import AWAY, machine_for, may_pay, pays
from .options import Options
from .plan_cache import Plan, find, keep, vouch, vouched
from .report import TrainingLog
from .verification import Verification

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

IMPROVED_MEASURING = 5.0
"""Seconds of measuring after the first round, if iterations that drift are timed anew while they train."""


class CollectivesFoundError(InputError):
    """Error: the module communicates with other ranks, so that all must plan together.

    groups: names of its groups.
    """

    def __init__(self, groups: Mapping[str, str]) -> None:
        self.groups = groups
        super().__init__(
            f"{next(iter(groups.values()))} communicates with other ranks, which must all run the same plan: "
            "give module and optimizer to memplan.optimize, on all of them"
        )


class Parts(NamedTuple):
    """Plans for the other batches of an update over several.

    They train the same weights as the plan for the last batch.
    adding: for the batches before the last.
    updating: for an update without a batch (runtime/updates/parts.py).
    """

    adding: PlannedStep
    updating: PlannedStep


class _Kept(NamedTuple):
    """Entry of the plan cache for one program.

    asked: all that a plan depends on apart from the program.
    plan: the plan found, None if there is none.
    grounds: signature that a verification rests on, None if none is kept.
    vouched: whether the plan was found equal under this signature, so that it need not be compared.
    """

    asked: tuple[Any, ...]
    plan: Plan | None = None
    grounds: str | None = None
    vouched: bool = False


@dataclass
class Planner:
    """Factory of the plans of one step, which share options, budget and measured times.

    bytes: the budget; None until the first plan, to whose baseline a share refers.
    outside: bytes of the budget that are on the device but are not the plans'.
    limit: bytes of plans made before more was found to be outside of them; None if none was.
    calls: number of iterations that may be between their halves at once, and share the budget.
    parts: for each plan over several batches, the plans of the other batches.
    links: the machine's links by the times of iterations, for later plans.
    improves: whether plans are improved while they train (adapt.py), so that a first one may be found fast.
    _settled: of each plan that may be used, the structure of its program, "" for one with compiled calls.
    """

    options: Options
    book: TrainingLog
    links: Links | None = None
    bytes: int | None = None
    outside: LoopMemory = field(default_factory=LoopMemory)
    limit: int | None = None
    improves: bool = False
    calls: int = 1
    parts: WeakKeyDictionary[PlannedStep, Parts] = field(
        default_factory=WeakKeyDictionary[PlannedStep, Parts]
    )
    _settled: WeakKeyDictionary[PlannedStep, str] = field(default_factory=WeakKeyDictionary[PlannedStep, str])
    _asked: WeakKeyDictionary[PlannedStep, tuple[Any, ...]] = field(
        default_factory=WeakKeyDictionary[PlannedStep, "tuple[Any, ...]"]
    )

    def leave_room(self, more: LoopMemory) -> None:
        """Have plans leave room from now on for what the loop has outside of them."""
        before, self.outside = self.outside, more
        if self.bytes is not None:
            self.bytes = self.limit = self.bytes - (more.bytes - before.bytes)

    def __post_init__(self) -> None:
        self.verification = Verification(self.options, self.book, self.machine_of)

    @property
    def verify(self) -> bool | None:
        """Whether plans are compared with eager PyTorch; None: unless they were before."""
        return False if self.options.weights is not None else self.options.verify

    def __call__(self, iteration: Iteration, less: int = 0) -> PlannedStep:
        """Plan an iteration and return it as a planned step.

        less: bytes of the budget that are not available to the iteration.

        Weights, buffers, optimizer and random numbers are restored. Raises MemplanError; the bytes of an
        InfeasibleError include those outside of plans.
        """
        try:
            return self._made_step(iteration, less)
        except InfeasibleError as error:
            raise self.outside.added_to(error) from None

    def _made_step(self, iteration: Iteration, less: int) -> PlannedStep:
        size = self.bytes and max(0, self.bytes - less)
        with self.book.phase("trace"), collector_off():
            program = trace(iteration)
            if groups := groups_of(program):  # before anything runs: the others would have to run it too
                raise CollectivesFoundError(groups)
            kept = self._kept(iteration, program, size)
            like = self._like(program)
            samples = self._samples(like)
            if not kept.vouched:  # else its layouts are known to be those of the kernels here
                if samples is not None:
                    check_profiler(program.device)
                real = trace_real_layouts(iteration, program, samples)
                if real.fingerprint != program.fingerprint:
                    program, kept = real, self._kept(iteration, real, size)
                    like = self._like(program)
        if iteration.processes is not None:
            both = averaged(program) if iteration.updates is not None else program.gradients
            iteration.processes.check({x: program.values[v].shape for x, v in both.items()})
        plan = kept.plan
        if kept.asked[-1] == AWAY and not self.outside.offloaded:
            self.leave_room(self.outside._replace(offloaded=True))
        if plan is None and samples is not None and size is not None:
            plan = self._derived(iteration, program, samples, like, size)
        if plan is None:
            counted = self.outside
            plan = self._made(iteration, program, size)
            if self.outside is not counted:
                kept = kept._replace(asked=(*kept.asked, AWAY))
        self.bytes = self.bytes or plan.budget
        step = self._step(iteration, plan)
        vouching = self._compare(iteration, step, plan, kept, like, first=size is None)
        self._settled[step] = "" if plan.compiled is not None else structure(plan.program)
        self._asked[step] = kept.asked
        if kept.plan is None:
            self.keep(step, plan)
        if vouching is not None:
            vouching()
        self.book.opened(step, plan, self.machine_of(plan))
        if iteration.updates is not None:
            optimizer = iteration.updates.optimizer
            if line := fused_hint(plan.program, plan.graph, plan.schedule, optimizer):
                self.book.note(step, line)
        return step

    def _like(self, program: Program) -> list[PlannedStep]:
        """Return the steps whose programs have the same structure, the last one the latest."""
        own = structure(program)
        return [step for step, other in self._settled.items() if other == own]

    def _samples(self, like: Sequence[PlannedStep]) -> Samples | None:
        """Return what samples costs of calls that no plan has so far; None if there is no plan.

        like: steps whose programs have the structure of the new one, if there are any.
        """
        if not self._settled:
            return None
        plan = self.book.plan((like or [*self._settled])[-1])
        return Samples(plan.program, plan.graph)

    def _derived(
        self, iteration: Iteration, program: Program, samples: Samples, like: Sequence[PlannedStep], size: int
    ) -> Plan | None:
        """Return a plan without a search: by the schedule of one with the same structure, or one that keeps
        everything; None if there is none.

        samples: what operations cost.
        like: steps with programs of this structure, none if it is another one.
        """
        if not like and (self.options.compile or iteration.processes is not None):
            return None  # it needs kernels of its own, or is measured together with the others
        if iteration.trains:
            self.outside.check_step(program, size)
        plans = [self.book.plan(step) for step in like]
        with self.book.phase("derive"):
            graph = samples.graph(program, same_structure=bool(like))
            if graph is None:
                return None
            plan = self._unsolved(program, graph, size)
            if (found := transferred(plan, plans, self.machine_of(plan))) is not None:
                return found._replace(improvable=found.improvable and self.improves and iteration.trains)
        if not like:
            return None
        try:
            return self._solved(plan, iteration, size)
        except InfeasibleError:
            return None

    def _kept(self, iteration: Iteration, program: Program, size: int | None) -> _Kept:
        when = iteration.updates and iteration.updates.when  # the fingerprint does not cover the order
        solver = self._solver(iteration)
        asked = (
            size or self.options.budget.text,
            self.options.machine,
            solver,
            self.options.time_limit,
            when,
            self.outside[:3],
        )
        if self.options.compile:
            asked = (*asked, COMPILED)
        if self.options.settings:
            asked = (*asked, *self.options.settings.items())
        if self.options.allow is not None:
            asked = (*asked, "allow", *self.options.allow)
        if self.calls > 1:
            asked = (*asked, self.calls)
        if iteration.processes is not None:
            asked = (*asked, iteration.processes.rank, iteration.processes.size)
        if self.options.cache is None:
            return _Kept(asked)
        plan = find(self.options.cache, program, self.options.machine, asked)
        if plan is None and machine_for(iteration, self.outside, self.options) is not None:
            plan = find(self.options.cache, program, self.options.machine, (*asked, AWAY))
            asked = asked if plan is None else (*asked, AWAY)
        if self.verify is False:
            return _Kept(asked, plan)
        base = grounds(iteration, program, self.options.rollback_on_error)
        known = plan is not None and base is not None and vouched(self.options.cache, plan, asked, base)
        return _Kept(asked, plan, base, vouched=known and self.verify is None)

    def _compare(
        self,
        iteration: Iteration,
        step: PlannedStep,
        plan: Plan,
        kept: _Kept,
        like: Sequence[PlannedStep],
        *,
        first: bool,
    ) -> Callable[[], None] | None:
        """Compare the plan with eager PyTorch, now or on the first batches, unless it was compared before.

        like: other steps with the same calls, in one of which these were compared, or will be.
        first: whether the plan is the one that `optimize` returns. Only that one may be refused because eager
            PyTorch takes less: training in progress is not stopped for this.

        Returns what notes the result on disk, None if it may not be noted, or not yet.
        """
        if kept.vouched:
            self.book.compared_before()
            return None
        same = like if self.verify is None and plan.compiled is None else ()
        if self.verify is False or any(step not in self.verification.waiting for step in same):
            return None
        folder, base = self.options.cache, kept.grounds
        vouching = None if base is None or folder is None else partial(vouch, folder, plan, kept.asked, base)
        weighs = iteration.trains and first
        in_turn = self._in_turn(iteration, step)
        if self.verification.can_wait(iteration, step, plan):
            self.verification.wait(iteration, step, plan, vouching, like, in_turn, weighs=weighs)
            return None
        with self.book.phase("compare"):
            steady = self.verification.before_training(
                iteration, step, plan, in_turn, self.outside.bytes, weighs=weighs
            )
        return vouching if steady else None

    def _solver(self, iteration: Iteration) -> str:
        return self.options.solver if iteration.trains else FORWARD

    def machine_of(self, plan: Plan) -> Machine | None:
        """Return the machine of a plan: with measured rates if iterations have drifted, else as requested."""
        return plan.graph.machine or self.options.machine

    def keep(self, step: PlannedStep, plan: Plan) -> None:
        """Write the plan to the cache, if there is one, where it replaces the step's."""
        if self.options.cache is not None and (asked := self._asked.get(step)) is not None:
            keep(self.options.cache, plan, self.machine_of(plan), asked)

    def instead(self, iteration: Iteration, step: PlannedStep, plan: Plan) -> PlannedStep:
        """Return a step for the same program by another schedule, which takes over the weights in place.

        The device first holds less, then more, never more than both plans hold between iterations. Raises
        MemplanError and others; the old step then goes on. Call `step.check_unchanged` before: the new step
        is made for module and optimizer as they are now.
        """
        with self.giving_up(step):
            made = self._step(iteration, plan, step)
            made.place()
        for known in (self._asked, self._settled, self.verification.waiting):
            if step in known:
                known[made] = known[step]  # pyright: ignore[reportArgumentType]
        return made

    def smaller(self, iteration: Iteration, step: PlannedStep, budget: int) -> PlannedStep:
        """Return a step for the same iteration with this budget in bytes; the old step is given up.

        If the iteration trains, plans for other shapes get the same budget from now on. Raises
        InfeasibleError.
        """
        before = self.book.plan(step)
        asked = (budget, *self._asked[step][1:])
        found = (
            None
            if self.options.cache is None
            else find(self.options.cache, before.traced, self.options.machine, asked)
        )
        if iteration.trains:
            self.outside.check_step(before.program, budget)
        plan = found or self._solved(before, iteration, budget)
        if iteration.trains:
            self.bytes = budget
        with self.giving_up(step):
            made = self._step(iteration, plan)
        self._asked[made] = asked
        self._settled[made] = self._settled[step]
        self.verification.waiting.pop(step, None)
        if found is None:
            self.keep(made, plan)
        self.book.opened(made, plan, self.machine_of(plan))
        return made

    @contextmanager
    def giving_up(self, step: PlannedStep) -> Generator[None]:
        """Lend the step's pinned memory, and that of its CUDA graphs, to the block.

        The step gets it back if the block fails.
        """
        steps = (step, *self.parts.get(step, ()))
        for each in steps:
            each.release_graphs()
        cycles = [each.cycle for each in steps if each.cycle is not None]
        for cycle in cycles:
            cycle.unpin()
        try:
            yield
        except BaseException:
            for cycle in cycles:
                cycle.pin()
            raise

    def _step(self, iteration: Iteration, plan: Plan, before: PlannedStep | None = None) -> PlannedStep:
        """Make the step of a plan. before: the step whose host memory it takes over, None if none."""
        step = self._planned(iteration, plan, 0 if before is None else before.host_bytes)
        if iteration.updates is not None and iteration.accumulate > 1:
            first, rest = (self._part(part(plan.program), plan) for part in (adding, updating))
            adding_step = self._planned(iteration, first)
            self.parts[step] = Parts(adding_step, self._planned(iteration._replace(inputs=()), rest))
            self.book.joined(adding_step, first, self.machine_of(plan))
        return step

    def _part(self, part: Part, whole: Plan) -> Plan:
        """Plan a part by the whole's schedule: each tensor is in the same memory between iterations."""
        with self.book.phase("measure"):
            graph = graph_of_part(part, whole.program, whole.graph)
        graph = replace(graph, machine=whole.graph.machine)
        machine = self.machine_of(whole)
        schedule = part_of(whole.schedule, graph, part.places, budget=whole.budget, machine=machine)
        return Plan(part.program, graph, schedule, whole.budget)

    def _planned(self, iteration: Iteration, plan: Plan, left: int = 0) -> PlannedStep:
        terms = Terms(plan.graph, plan.budget, self.machine_of(plan), left=left)
        kind = PlannedPart if iteration.purpose == "part" else PlannedStep
        return kind(
            iteration,
            plan.program,
            plan.schedule,
            terms,
            undo=self.options.rollback_on_error and iteration.trains,
            cuda_graph=self.options.cuda_graph and iteration.trains,
        )

    def _in_turn(self, iteration: Iteration, step: PlannedStep) -> Sequence[PlannedStep] | None:
        """Return the steps to compare one after the other, None for the step alone.

        They are a first batch, another, the last, and one that begins with the next update.
        """
        if step not in self.parts:
            return None
        add = self.parts[step].adding
        return (*(add,) * min(2, iteration.accumulate - 1), step, add)

    def _made(self, iteration: Iteration, program: Program, size: int | None) -> Plan:
        with self.book.phase("measure"):
            tensors = residents(program, iteration)
            limit = IMPROVED_MEASURING if self.improves else None
            measured = measure_program(program, tensors, self.book.measured, ran=True, limit_seconds=limit)
        if line := busy_line(uncertainty(measured)):
            self.book.remark("measure", line)
        if iteration.processes is not None:
            measured = with_talks(measured, program, iteration.processes)
        graph = graph_from(program, measured)
        budget = self._first_budget(graph, program, iteration) if size is None else size
        choose = partial(self._chosen, iteration, program, measured, graph)
        try:
            return self._roomier(iteration, choose, budget)
        except InfeasibleError as error:
            shares = self.options.budget.size is None and iteration.trains
            peak = self._whole_peak(graph, program) if shares else None
            problem = Problem(graph, budget, self.options.machine, self.options.allow)
            explain(error, problem, self.outside, self.outside.needed(program), peak)
            raise

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

    def _chosen(
        self,
        iteration: Iteration,
        program: Program,
        measured: list[Measurement],
        graph: Graph,
        budget: int,
    ) -> Plan:
        """Return the plan, with compiled kernels if they are requested. Raises InfeasibleError."""
        if iteration.trains:
            self.outside.check_step(program, budget)
        plan = self._unsolved(program, graph, budget)
        if not self.options.compile:
            return self._solved(plan, iteration, budget)
        with self.book.phase("compile"):
            found = chosen(program, measured, self.book.compiled)
        graph = graph_from(found.program, found.measured, source={COMPILED: found.groups})
        fused = self._unsolved(found.program, graph, budget)
        try:
            return self._solved(fused._replace(compiled=Compiled(program, found.kernels)), iteration, budget)
        except InfeasibleError as error:
            made = self._solved(plan, iteration, budget)
            warn_user(f"planned without compiled operations: with them there is {error}")
            return made

    def _first_budget(self, graph: Graph, program: Program, iteration: Iteration) -> int:
        """Return the bytes that the iteration may take.

        A budget in bytes includes what libraries keep on the device, and the optimizer in addition to its
        states. The baseline's peak, to which a share refers, does not: it is that of the whole loop, with
        what is outside of plans, and with the optimizer's step.
        """
        kept, device = 0, device_of(program.device)
        if self.options.budget.size is not None:
            updates = iteration.updates
            kept = device.constant_bytes() + (count_bytes(updates.optimizer, device) if updates else 0)
        extra, resident = self.outside.bytes, graph.resident_bytes
        budget = self.options.budget.bytes_of(self._whole_peak(graph, program), resident + extra) - extra
        if 0 < budget <= kept:
            raise InputError(f"of {budget:,} B libraries keep {kept:,} B: nothing is left to plan in")
        # What is resident is there once; all else, of each of the calls.
        return resident + (budget - kept - resident) // self.calls

    def _whole_peak(self, graph: Graph, program: Program) -> int:
        """Return the peak of the loop whose plan keeps everything."""
        resident = graph.resident_bytes
        together = resident + self.calls * (baseline(graph).peak - resident)
        return max(together + self.outside.bytes, self.outside.needed(program))

    def _unsolved(self, program: Program, graph: Graph, budget: int) -> Plan:
        """Return the baseline as a plan, on links with the rates that iterations have measured."""
        if self.options.machine is not None and self.links is not None:
            graph = replace(graph, machine=replace(self.options.machine, links=self.links))
        return Plan(program, graph, baseline_schedule(graph), budget)

    def _solved(self, plan: Plan, iteration: Iteration, budget: int) -> Plan:
        """Solve the iteration's graph, which the plan has, for this budget in bytes.

        Without a time limit or gap `auto` stops once there is a schedule and its patience is over.
        """
        solver, improves = self._solver(iteration), self.improves and iteration.trains
        machine = self.machine_of(plan)
        within = budget if machine is None else budget - plan.program.handed_over_bytes
        problem, tell = Problem(plan.graph, within, machine, self.options.allow), self.book.solving
        hurried = solver == AUTO and self.options.time_limit is None and self.options.gap is None
        race = Incumbent(self._patience(improves=improves) if hurried else inf)
        with self.book.phase("solve"):  # no lower bound is reported, so none is computed
            solution = solve(
                solver,
                problem,
                self.options.time_limit,
                self.options.settings,
                report=tell,
                bound_seconds=0,
                race=race,
            )
        stopped = hurried and solution.status not in (Status.OPTIMAL, Status.WITHIN_GAP)
        if stopped:
            self.book.remark("solve", _stopped(race, improves=improves))
        graph = plan.graph
        if solution.machine is not problem.machine:
            warn_user(solution.notes[0])
            graph = replace(graph, machine=solution.machine)
        return plan._replace(
            graph=graph,
            schedule=solution.schedule,
            budget=budget,
            improvable=stopped and improves,
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
    far = f", at most {off:.1%} slower than the fastest there can be" if race.bound > 0 else ""
    then = ": it is improved while it trains" if improves else ""
    return f"the first schedule found is used{far}{then}"
