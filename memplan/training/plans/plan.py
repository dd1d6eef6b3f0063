"""A plan for one shape: the iteration is traced; the plan is found on disk or made; then it is verified."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...devices.measuring.live_bytes import check_profiler
from ...graphs.collector import collector_off
from ...graphs.machine import Memory
from ...graphs.undisturbed import deep_calls
from ...graphs.units import duration, format_bytes
from ...guards.signature import grounds
from ...model.iteration import Iteration
from ...planner.simulator.part import part_of
from ...profiling.fusion.choice import COMPILED
from ...profiling.profile.fused_updates import fused_hint
from ...profiling.profile.part import graph_of_part
from ...profiling.profile.sampled import Samples
from ...profiling.splitting.split import SPLIT, regions_line
from ...program.program import Program
from ...program.structure import graph_form, structure
from ...runtime.run.cycle import Terms
from ...solvers.problem import InfeasibleError
from ...steps.execute import PlannedStep
from ...steps.part import PlannedPart
from ...torch_support.out_of_memory import planning
from ...tracing.output_layouts import trace_real_layouts
from ...updates.averages import averaged
from ...updates.parts import Part, adding, updating
from .budgeted import BudgetedPlanner
from .derived import transferred
from .less_room import fitting_step
from .old_gradients import ON_HOST, machine_for
from .plan_cache import Plan, find, keep, vouch, vouched
from .verification import Verification


class Parts(NamedTuple):
    """Plans for the other batches of an update over several.

    They train the same weights as the plan for the last batch.
    adding: for the batches before the last.
    updating: for an update without a batch (updates/parts.py).
    """

    adding: PlannedStep
    updating: PlannedStep


class _Kept(NamedTuple):
    """Entry of the plan cache for one program.

    asked: all that a plan depends on apart from the program; nothing if it is not kept.
    plan: the plan found, None if there is none.
    grounds: signature that a verification rests on, None if none is kept.
    vouched: whether the plan was found equal under this signature, so that it need not be compared.
    """

    asked: tuple[Any, ...]
    plan: Plan | None = None
    grounds: str | None = None
    vouched: bool = False


class _Traced(NamedTuple):
    """A program to plan.

    kept: its entry of the plan cache.
    like: steps whose programs have its structure, none if it is another one.
    samples: what samples costs of calls that no plan has so far; None if there is no plan.
    """

    program: Program
    kept: _Kept
    like: Sequence[PlannedStep] = ()
    samples: Samples | None = None


@dataclass
class Planner(BudgetedPlanner):
    """Factory of the plans of one step.

    parts: for each plan over several batches, the plans of the other batches.
    _settled: of each plan that may be used, the structure of its program, "" for one with compiled calls.
    _asked: of each plan, its entry's `asked`.
    """

    parts: WeakKeyDictionary[PlannedStep, Parts] = field(
        default_factory=WeakKeyDictionary[PlannedStep, Parts]
    )
    _settled: WeakKeyDictionary[PlannedStep, str] = field(default_factory=WeakKeyDictionary[PlannedStep, str])
    _asked: WeakKeyDictionary[PlannedStep, tuple[Any, ...]] = field(
        default_factory=WeakKeyDictionary[PlannedStep, "tuple[Any, ...]"]
    )

    def __post_init__(self) -> None:
        self.verification = Verification(self.options, self.book, self.machine_of, self._in_turn)

    @property
    def verify(self) -> bool | None:
        """Whether plans are compared with eager PyTorch; None: unless they were before."""
        return False if self.options.weights is not None else self.options.verify

    def __call__(self, iteration: Iteration, less: int = 0) -> PlannedStep:
        """Plan an iteration and return it as a planned step.

        less: bytes of the budget that are not available to the iteration.

        Weights, buffers, optimizer and random numbers are restored. Raises MemplanError, OutOfMemoryError if
        there is no memory to plan in; the bytes of an InfeasibleError include those outside of plans.
        """
        try:
            with deep_calls(), planning("this batch"):
                return self._made_step(iteration, less)
        except InfeasibleError as error:
            raise self.outside.added_to(error) from None

    def _made_step(self, iteration: Iteration, less: int) -> PlannedStep:
        """Trace; find the plan on disk, derive or make it; make its step, and compare that."""
        ranks, size = iteration.group, self.bytes and max(0, self.bytes - less)
        with ranks.beating():
            with self.front_end.planning(iteration):
                traced = self._traced(iteration, size)
                kept, like, counted = traced.kept, traced.like, self.outside
                known = kept.plan or self._derived(iteration, traced, size)
                if not ranks.from_first(known is not None):  # the first rank's plan is that of all
                    self.front_end.meet(iteration, traced.program, self.book)
                make = partial(self._made, iteration, traced.program, size)
                plan = self.front_end.by_first(iteration, traced.program, lambda: known or make())
                if self.outside is not counted:
                    kept = kept._replace(asked=(*kept.asked, ON_HOST))
            self.bytes = self.bytes or plan.budget
            self.front_end.place(iteration)
            step, made = fitting_step(self, iteration, plan, partial(self._step, iteration))
            if made is not plan:  # it is for the room of the moment: a later start may have more
                plan, kept = made, _Kept(())
            vouching = self._compare(iteration, step, plan, kept, like, first=size is None)
        self._settled[step] = "" if plan.compiled is not None else structure(plan.program)
        self._asked[step] = kept.asked
        if kept.plan is None:
            self.keep(step, plan)
        if vouching is not None:
            vouching()
        self.book.opened(step, plan, self.solving_machine(plan), self)
        if line := regions_line(plan.graph.source):
            self.book.note(step, line)
        if step.early:
            self.book.note(step, _early_line(step.journal.bytes, self.book.figures(step).time))
        if iteration.updates is not None:
            optimizer = iteration.updates.optimizer
            if line := fused_hint(plan.program, plan.graph, plan.schedule, optimizer):
                self.book.note(step, line)
        return step

    def _traced(self, iteration: Iteration, size: int | None) -> _Traced:
        """Trace the iteration, and look for its plan on disk. size: the budget in bytes, if it is known."""
        with self.book.phase("trace"), collector_off():
            program = self.front_end.traced(iteration)
            self._count_libraries(iteration, program)
            kept = self._kept(iteration, program, size)
            if iteration.ranks is not None:  # each measures what only it can: nothing is derived
                return _Traced(program, kept)
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
            both = {name: [value] for name, value in program.gradients.items()}
            if iteration.updates is not None:
                both = averaged(program)
            iteration.processes.check({x: [program.values[v].shape for v in vs] for x, vs in both.items()})
        if kept.asked[-1] == ON_HOST and not self.outside.offloaded:
            self.leave_room(self.outside._replace(offloaded=True))
        return _Traced(program, kept, like, samples)

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

    def _derived(self, iteration: Iteration, traced: _Traced, size: int | None) -> Plan | None:
        """Return a plan without a search: by the schedule of one with the same structure, or one that keeps
        everything; None if there is none.
        """
        program, like, samples = traced.program, traced.like, traced.samples
        if samples is None or size is None:
            return None
        if not like and (self.options.compile or self.options.split or iteration.processes is not None):
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
        if iteration.group.rank:  # rank 0 plans
            return _Kept(())
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
        if self.options.split:
            asked = (*asked, SPLIT, self.options.split)
        if self.options.settings:
            asked = (*asked, *self.options.settings.items())
        if self.options.allow is not None:
            asked = (*asked, "allow", *self.options.allow)
        if self.calls > 1:
            asked = (*asked, self.calls)
        if iteration.processes is not None:
            asked = (*asked, iteration.processes.rank, iteration.processes.size)
        asked = (*asked, *self.front_end.asked(iteration))
        if self.options.cache is None:
            return _Kept(asked)
        if iteration.ranks is not None:
            plan = find(self.options.cache, program, self.options.machine, asked, same_bytes=False)
            # Other ranks' programs have the form of this one: its operations in another order are not theirs.
            same = plan is not None and graph_form(plan.program) == graph_form(program)
            return _Kept(asked, plan if same else None)
        plan = find(self.options.cache, program, self.options.machine, asked)
        if plan is None and machine_for(iteration, self.outside, self.options) is not None:
            plan = find(self.options.cache, program, self.options.machine, (*asked, ON_HOST))
            asked = asked if plan is None else (*asked, ON_HOST)
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
        same = like if self.verify is None and not plan.rounds else ()
        if self.verify is False or any(step not in self.verification.waiting for step in same):
            return None
        if iteration.ranks is not None:  # eager PyTorch would need whole weights, or the other ranks
            return None
        folder, base = self.options.cache, kept.grounds
        vouching = None if base is None or folder is None else partial(vouch, folder, plan, kept.asked, base)
        weighs = iteration.trains and first
        in_turn = self._in_turn(iteration, step)
        if self.verification.can_wait(iteration, step, plan):
            self.verification.wait(
                iteration, step, plan, vouching=vouching, like=like, in_turn=in_turn, weighs=weighs
            )
            return None
        with self.book.phase("compare"):
            steady = self.verification.before_training(iteration, step, plan, in_turn, self, weighs=weighs)
        return vouching if steady else None

    def keep(self, step: PlannedStep, plan: Plan) -> None:
        """Write the plan to the cache, if there is one, where it replaces the step's."""
        if self.options.cache is not None and (asked := self._asked.get(step)):
            keep(self.options.cache, plan, self.machine_of(plan), asked)

    def instead(self, iteration: Iteration, step: PlannedStep, plan: Plan) -> PlannedStep:
        """Return a step for the same program by another schedule, which takes over the weights in place.

        The device first holds less, then more, never more than both plans hold between iterations. Raises
        MemplanError and others, on all ranks that run the plan; the old step then goes on. Call
        `step.check_unchanged` before: the new step is made for module and optimizer as they are now.
        """
        with self.giving_up(step):
            made = iteration.group.together(partial(self._placed, iteration, plan, step))
        for known in (self._asked, self._settled, self.verification.waiting):
            if step in known:
                known[made] = known[step]  # pyright: ignore[reportArgumentType]
        return made

    def _placed(self, iteration: Iteration, plan: Plan, before: PlannedStep) -> PlannedStep:
        made = self._step(iteration, plan, before)
        made.place()
        return made

    def smaller(
        self,
        iteration: Iteration,
        step: PlannedStep,
        budget: int,
        capacity: tuple[Memory, int] | None = None,
    ) -> PlannedStep:
        """Return a step for the same iteration with this budget in bytes; the old step is given up.

        capacity: a memory below the device and the bytes that plans can have there from now on.

        If the iteration trains, plans for other shapes get the same budget from now on. Raises
        InfeasibleError, whose bytes include those outside of plans.
        """
        before = self.book.plan(step)
        folder, asked = self.options.cache, self._asked[step] and (budget, *self._asked[step][1:])
        if capacity is not None:
            before, asked = self.on_less(before, *capacity), ()
        found = None
        if folder is not None and asked:
            found = find(folder, before.traced, self.options.machine, asked)

        def make() -> Plan:
            if iteration.trains:
                self.outside.check_step(before.program, budget)
            return found or self._solved(before, iteration, budget)

        try:
            plan = self.front_end.by_first(iteration, before.program, make)
        except InfeasibleError as error:
            raise self.outside.added_to(self._with_calls(error, before.graph)) from None
        if iteration.trains:
            self.bytes = budget
        with self.giving_up(step):
            make_step = partial(self._step, iteration, before=step)
            made, fitting = fitting_step(self, iteration, plan, make_step)
        self._asked[made] = asked if fitting is plan else ()
        plan = fitting
        self._settled[made] = self._settled[step]
        self.verification.waiting.pop(step, None)
        if found is None:
            self.keep(made, plan)
        self.book.opened(made, plan, self.solving_machine(plan), self)
        return made

    def with_parts(self, step: PlannedStep) -> tuple[PlannedStep, ...]:
        """Return the plan of an update's last batch, that of the batches before it, and that of no batch."""
        return (step, *self.parts.get(step, ()))

    @contextmanager
    def giving_up(self, step: PlannedStep) -> Generator[None]:
        """Lend the step's pinned memory, and that of its CUDA graphs, to the block.

        The step gets it back if the block fails.
        """
        steps = self.with_parts(step)
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
        left = 0 if before is None else before.host_bytes
        self.front_end.check_room(iteration, plan, self.machine_of(plan), left)
        step = self._planned(iteration, plan, left)
        if iteration.accumulates:
            first, rest = (self._part(part(plan.program), plan) for part in (adding, updating))
            adding_step = self._planned(iteration, first)
            self.parts[step] = Parts(adding_step, self._planned(iteration._replace(inputs=()), rest))
            self.book.joined(adding_step, first, self.solving_machine(plan))
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
            self.front_end.local(iteration, plan.program),
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


def _early_line(size: int, seconds: float) -> str:
    """Return the line about the price of early updates. size: bytes that an iteration copies to the host."""
    return (
        f"early updates copy {format_bytes(size)} to host memory in each iteration; one that is rolled back "
        f"takes {duration(2 * seconds)} instead of {duration(seconds)}"
    )
