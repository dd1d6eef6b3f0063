"""Run a schedule, which replaces forward and backward."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..devices.device.choice import device_of
from ..devices.device.device import StreamDevice
from ..devices.sharded.local_tensors import local_tensor
from ..devices.storage.journal import Journal
from ..devices.storage.offloaded import bring_back
from ..graphs.graph import Graph
from ..guards.guards import Guards
from ..guards.values_used import BUFFERS, INPUTS
from ..model.iteration import Inputs, Iteration, tensors_in
from ..model.reading import Reading
from ..planner.schedule.schedule import Schedule
from ..program.program import Program
from ..program.state_blocks import whole_by_block
from ..runtime.codegen.codegen import generate, is_plain
from ..runtime.run.arena import rooms_of
from ..runtime.run.blocked_ownership import BlockedOwnership
from ..runtime.run.captured_iteration import CapturedIteration, check_capturable
from ..runtime.run.changes import Changes, changed_by_others, changed_residents
from ..runtime.run.cycle import Cycle, Terms
from ..runtime.run.over_plan import Watch
from ..runtime.run.overlaps import Overlaps
from ..runtime.run.owners import Owners
from ..runtime.run.ownership import Ownership
from ..runtime.run.recovery import Recovery
from ..runtime.run.spread_ownership import SpreadOwnership
from ..runtime.run.stopwatch import Stopwatch, Times
from ..torch_support.below_autograd import as_traced
from ..torch_support.interrupts import deferred_signals, open_to_signals
from ..updates.averages import averages
from ..updates.buckets import buckets_of
from ..updates.clipping import MAX_NORM, coefficient
from ..updates.early import (
    FIRST_PASS,
    Coefficient,
    Known,
    TooEarlyError,
    coefficient_bytes,
    updates_early,
)
from ..updates.state import OptimizerState
from .inputs import Expected, OtherModeError, OtherValuesError, UsedValuesError


class IterationResult(NamedTuple):
    """Results of an iteration.

    loss: None if the iteration has none.
    gradients: by parameter name, those that no update has used up.
    outputs: the requested ones of the tensors that the module returns.
    grad_norm: of all gradients, if they are clipped by it.
    infinite: a gradient of a scaled loss is infinite, so nothing was updated.
    rolled_back: early updates were put back, and the iteration ran a second time.
    parameters: those of the gradients, in their order.
    input_gradients: by name, those of inputs of an iteration that is part of a larger graph.
    of_host_part: tensors that the iteration's Python code asks about.
    saved: the parameters, buffers, inputs and constants that eager PyTorch would have saved for backward.
    """

    loss: Tensor | None
    gradients: dict[str, Tensor]
    outputs: dict[str, Tensor]
    grad_norm: Tensor | None = None
    infinite: bool = False
    rolled_back: bool = False
    parameters: Sequence[Tensor] = ()
    input_gradients: Mapping[str, Tensor] = {}
    of_host_part: Mapping[str, Tensor] = MappingProxyType({})
    saved: Sequence[Tensor] = ()


class PlannedStep:
    """One training iteration by a schedule: forward and backward, buffers changed in place.

        step = PlannedStep(iteration, program, schedule)
        loss = step(*inputs)          # the gradients are added to the parameters' `.grad`
        loss = step(*inputs, targets=labels)        # if the loss function takes targets
        optimizer.step()              # not if the iteration has updates: they are in the schedule then

    Weights are updated with the states, the learning rates and the step count that the optimizer has when the
    step is called, and these go on with it: `state_dict()` and learning rate schedules work as usual. A step
    holds for the shapes, dtypes, other arguments, train or eval mode, autocast, hooks and submodules that it
    was traced with: inputs of another form and a module that has changed raise MismatchError.

    in_half: whether anything in it is float16.
    output: what the module has returned in the last iteration, with the requested tensors, detached; it is
        let go of when the next one starts.

    Tensors that the schedule moves between memories are owned by the step from its first iteration on: a read
    of one has it back first (ownership.py), and `restore_to_device` fetches all.
    """

    def __init__(
        self,
        iteration: Iteration,
        program: Program,
        schedule: Schedule,
        terms: Terms | None = None,
        *,
        undo: bool = False,
        cuda_graph: bool = False,
    ) -> None:
        """Prepare the step.

        terms: needed if the schedule has transfers or execution variants.
        undo: keep in host memory what updates overwrite, so that an iteration that fails between them is as
            if it had not begun. Early updates (updates/early.py) are kept so too.
        cuda_graph: replay iterations as a CUDA graph (captured_iteration.py).

        Raises MemplanError if the schedule does not hold, or can't be run here.
        """
        self.program = program
        self.early = updates_early(program)
        self._processes = iteration.processes
        self._peers = iteration.peers
        others = iteration.ranks or self._processes
        self._expected = Expected(program, iteration.inputs)
        self._reading = Reading(iteration)
        self._optimizer = None if iteration.updates is None else OptimizerState(program, iteration)
        if self._optimizer is not None:
            # The hook is the optimizer's, which may live longer than this step.
            weakref.finalize(self, self._optimizer.refuse_steps())
        self._owners = Owners(iteration.module, program, self._optimizer, local=iteration.peers is not None)
        self._guards = Guards(iteration, program, self._owners.places, self._owners.attached)
        self.device = (terms and terms.device) or device_of(program.device)
        self._terms, self._schedule = terms, schedule
        self.in_half = any(value.dtype == torch.float16 for value in program.values)
        own = () if self._optimizer is None else self._optimizer.own_masters
        self._overlaps = Overlaps(program, changed_residents(program), own)
        self.output: Any = None
        self.grad_norm: Tensor | None = None
        # If it is not complete it keeps no weights and states: their updates cannot be undone.
        complete = undo or self.early
        changed = changed_residents(program) if complete else changed_by_others(program)
        sizes = {x: program.storages[x].bytes for x in sorted(changed)}
        option = "rollback_on_error=True" if undo else "early_updates=True"
        blocks = whole_by_block(program)
        rows = {program.values[block].storage for block in blocks}
        self.journal = Journal(self.device, sizes, rows, complete=complete, option=option)
        machine = terms and (terms.machine or terms.graph.machine)
        capacity = machine and machine.host_capacity
        if complete and capacity is not None and self.journal.bytes > capacity:
            raise self.journal.shortage(0, capacity)
        self.rooms = rooms_of(self.device, program, schedule, terms and terms.layout)
        self.cycle = None
        self._moving = [False] * len(program.residents)
        self._rows = {n: blocks[v].blocks[v] for n, v in enumerate(program.residents) if v in blocks}
        # Whether each gradient is on its parameter's device already, where `.grad` must be.
        self._gradients_stay = all(
            program.values[value].device == program.values[program.parameters[name]].device
            for name, value in program.gradients.items()
        )
        self._stopwatch: Stopwatch | None = None
        self._graphs: CapturedIteration | None = None
        if cuda_graph:
            counts = self._optimizer is not None and self._optimizer.counts
            check_capturable(program, schedule, self.device, counts=counts)
        alone = is_plain(schedule) and not buckets_of(program)
        if alone and not (terms and terms.graph.operations.comm):
            self._code = generate(
                program, schedule, self.device, placement=self.rooms and self.rooms.placement
            )
            self.source = self._code.source
            if cuda_graph:
                self._graphs = self._replaying()
            self._run = self._graphs or self._code.compile(**self._tools)
            self._recovery = Recovery(
                program=program,
                owners=self._owners,
                optimizer=self._optimizer,
                device=self.device,
                journal=self.journal,
                moved=None,
                others=others,
            )
            self._watch = Watch(schedule, terms, self.device, None)
            return
        shards = iteration.scattered
        terms = terms or Terms.unlimited(program)
        self.cycle = Cycle(
            program=program,
            schedule=schedule,
            terms=terms,
            journal=self.journal,
            rooms=self.rooms,
            shards=shards,
            ends_jobs=undo,
        )
        self.source, self._run = self.cycle.sources[0], self.cycle.run_iteration
        moved = self._owners.of(self.cycle.moved)
        if shards is None and blocks:
            self._ownership = BlockedOwnership(program, moved, self.cycle)
        elif shards is None:
            self._ownership = Ownership(program, moved, self.cycle)
        else:
            self._ownership = SpreadOwnership(program, moved, self.cycle, shards)
        self._recovery = Recovery(
            program=program,
            owners=self._owners,
            optimizer=self._optimizer,
            device=self.device,
            journal=self.journal,
            moved=(self.cycle, self._ownership),
            others=others,
        )
        self._watch = Watch(schedule, terms, self.device, self.cycle)
        self._moving = [program.values[value].storage in self._moved for value in program.residents]
        self._rows = {place: rows for place, rows in self._rows.items() if not self._moving[place]}
        # A schedule with transfers may leave a gradient in host memory.
        self._gradients_stay = False

    @property
    def schedule(self) -> Schedule:
        return self._schedule

    @property
    def graph(self) -> Graph | None:
        """The schedule's graph; None for a schedule without terms."""
        return self._terms and self._terms.graph

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Run an iteration and return the loss; each gradient is added to its parameter's `.grad`, as by
        `loss.backward()`.

        If there are gradients, what the schedule has moved is back: an optimizer may go on with it.
        """
        with deferred_signals():
            outcome = self.iterate(self.given(arguments, keywords))
            self.accumulate(outcome)
        return cast("Tensor", outcome.loss)

    def iterate(self, inputs: Inputs) -> IterationResult:
        """Run an iteration as a call does, but leave the gradients to the caller: each on its parameter's
        device.
        """
        self.output = None
        with deferred_signals():
            outcome = self.run(inputs)
            self.run_host_part(inputs, outcome)
            self.grad_norm = outcome.grad_norm
            if outcome.gradients:
                self.restore_to_device()
            self.output = self.program.output.nest(outcome.outputs)
            if self._gradients_stay:
                return outcome
            both = zip(outcome.gradients.items(), outcome.parameters, strict=True)
            gradients = {name: each.to(parameter.device) for (name, each), parameter in both}
        return outcome._replace(gradients=gradients)

    def run_host_part(self, inputs: Inputs, outcome: IterationResult) -> None:
        """Run the code of the iteration, if it keeps or writes values, with those of this outcome."""
        if self.program.host_part is not None:
            with open_to_signals():
                self.program.host_part.run(inputs, outcome.of_host_part)

    def accumulate(self, outcome: IterationResult) -> None:
        """Add an iteration's gradients to the parameters' `.grad`."""
        for gradient, parameter in zip(outcome.gradients.values(), outcome.parameters, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def parameters(self, names: Iterable[str]) -> list[Tensor]:
        """Return those of the module's parameters and buffers with these names, as they are now."""
        tensors = self._owners.tensors()
        return [tensors[name] for name in names]

    def given(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Inputs:
        """Return the inputs of a call, with the targets if the plan has some. Raises MismatchError."""
        return self._reading.read(arguments, keywords)

    def check(self, inputs: Inputs) -> list[Tensor]:
        """Return the input tensors in the program's order.

        Raises OtherShapeError if only their shapes, or what the module is set to, differ from the plan's,
        else MismatchError.
        """
        if found := self._guards.other_mode():
            raise OtherModeError(found)
        given = self._expected.read(inputs)
        if self.program.used is not None and (other := self.program.used.difference(self._named(given))):
            raise UsedValuesError(other)
        if found := self._guards.other_values(given):
            raise OtherValuesError(found)
        return list(given.values())

    def check_unchanged(self) -> dict[str, Tensor]:
        """Return the module's parameters and buffers by name.

        Raises MismatchError if module, loss function or optimizer are no longer those of the plan.
        """
        tensors = self._guards.check(self._owners.tensors)
        if self._optimizer is not None:
            self._optimizer.check(tensors)
        return tensors

    def _named(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return inputs and buffers by the names that a trace gives those whose values it uses."""
        tensors = self._owners.tensors()
        buffers = {f"{BUFFERS}{name}": tensors[name] for name in self.program.buffers}
        return buffers | {f"{INPUTS}{name}": tensor for name, tensor in inputs.items()}

    def begin_timing(self) -> None:
        """Note from now on when the operations and copies of iterations begin and end."""
        cycle = self.cycle
        watch = self._stopwatch = Stopwatch(self.device, cycle and cycle.graph, self._schedule)
        if cycle is not None:
            cycle.timed_by(watch)
            return
        if self._graphs is not None:
            # A capture has no stamps: while it is timed the code runs by itself.
            self._graphs.release()
        placement = self.rooms and self.rooms.placement
        code = generate(self.program, self._schedule, self.device, timed=True, placement=placement)
        self._run = code.compile(**self._tools, mark=watch.mark)

    def end_timing(self) -> Times | None:
        """Wait for all that iterations have queued, and return their times.

        Returns None if none has ended since `begin_timing`.
        """
        watch, self._stopwatch = self._stopwatch, None
        if self.cycle is not None:
            self.cycle.end_jobs()
            self.cycle.timed_by(None)
        else:
            self.device.synchronize()
            self._run = self._graphs or self._code.compile(**self._tools)
        return watch and watch.times()

    def run(self, inputs: Inputs) -> IterationResult:
        """Run an iteration and return its results; `.grad` is left as it is."""
        given = self.check(inputs)
        tensors = self.check_unchanged()
        try:
            return self._run_pass(given, tensors, FIRST_PASS)
        except TooEarlyError as error:
            known = error.known
        return self._run_pass(given, tensors, known)._replace(rolled_back=True)

    def _run_pass(self, given: Sequence[Tensor], tensors: dict[str, Tensor], known: Known) -> IterationResult:
        """Run an iteration, or one of the two passes of one with early updates.

        Raises TooEarlyError, with all put back, if such updates are not those of what is then known.
        """
        with deferred_signals():
            states, settings = ((), ()) if self._optimizer is None else self._optimizer.begin(tensors)
            settings = (*settings, *known.settings) if self.early else settings
            residents = (*tensors.values(), *states, *given, *self._owners.constants.values())
            changes = self._changes.begin(tensors)
            if self._peers is not None:
                residents = [*map(local_tensor, residents)]
            with self._recovery.around(residents):
                self._overlaps.check(residents)
                residents = self._ready(residents)
                if self.cycle is None and self._graphs is None and self.journal.complete:
                    self.journal.copy_ahead((x, residents[place]) for x, place in self._overwritten)
                with self._running():
                    results = self._run(residents, settings)
                outcome = self._outcome(results)
                if self.early and known is FIRST_PASS:
                    self._check_early(outcome, settings[MAX_NORM.index])
                self._changes.count(changes)
                if self.cycle is not None:
                    self._ownership.note()
                if self._optimizer is not None:  # the last that can fail: from here on it is as after it
                    self._optimizer.end(skipped=outcome.infinite)
        saved = self._changes.saved(tensors, dict(zip(self.program.inputs, given, strict=True)))
        return outcome._replace(parameters=[tensors[name] for name in outcome.gradients], saved=saved)

    def _check_early(self, outcome: IterationResult, max_norm: float) -> None:
        """Raise TooEarlyError if an iteration's early updates are not those of all its gradients."""
        found: Coefficient | float = 1.0
        if outcome.grad_norm is not None:
            if isinstance(self.device, StreamDevice):
                self.device.moment().synchronize()  # not for the queues: their copies may go on
            on_device = coefficient(max_norm, outcome.grad_norm)
            found = Coefficient(on_device, on_device.cpu())
        # Written so that NaN, which equals nothing, counts as a difference: eager PyTorch multiplies by it.
        within = not isinstance(found, Coefficient) or bool(found.on_host == 1.0)
        if outcome.infinite or not within:
            raise TooEarlyError(Known(found, outcome.infinite))

    def saved(self, inputs: Inputs) -> list[Tensor]:
        """Return the tensors that eager PyTorch's iteration on these inputs would save for backward."""
        return self._changes.saved(self._owners.tensors(), tensors_in(inputs))

    def _ready(self, residents: Sequence[Tensor]) -> Sequence[Tensor]:
        """Have residents in the memories in which the iteration starts, and return those that it takes."""
        self._bring_back(residents)
        residents = self.device.adopted(residents)
        if self.cycle is not None:
            self._ownership.take()
        if self._rows:  # now: a view of a tensor that is taken would keep its memory
            rows = self._rows
            residents = [each[rows[place]] if place in rows else each for place, each in enumerate(residents)]
        if self._stopwatch is not None:
            self._stopwatch.lap()
        return residents

    @contextmanager
    def _running(self, *, first: bool = True) -> Generator[None]:
        """Surround the code of a schedule.

        first: it begins here; of a second half, the memory that the first has left is not known.
        """
        rooms = nullcontext() if self.rooms is None else self.rooms.iteration()
        watched = self._watch.iteration() if first and self._run is not self._graphs else nullcontext()
        # Signals are let in innermost: what surrounds the code is not interrupted.
        with watched, as_traced(self.program.device), rooms, open_to_signals():
            yield

    def _outcome(self, results: Sequence[Tensor]) -> IterationResult:
        """Sort an iteration's results into an IterationResult.

        results: in the program's order, in whichever memory the schedule has left them. Gradients of weights
            stay there; all others come to the device.
        """
        following, here = iter(results), self.program.device
        loss = None if self.program.loss is None else next(following).to(here)
        outputs = {name: next(following).to(here) for name in self.program.outputs}
        gradients = {name: next(following) for name in self.program.gradients}
        of_inputs = {name: next(following).to(here) for name in self.program.input_gradients}
        norm = None if self.program.norm is None else next(following).to(here)
        requested = {name: outputs.pop(name) for name in self.program.output.names}
        # The host waits for nothing here: the flag was copied to host memory within the iteration.
        infinite = bool(next(following, False))
        return IterationResult(
            loss, gradients, requested, norm, infinite, input_gradients=of_inputs, of_host_part=outputs
        )

    def _bring_back(self, residents: Sequence[Tensor]) -> None:
        """Bring back residents that another step has offloaded; those that this step moves are not among
        them.
        """
        bring_back(tensor for tensor, moves in zip(residents, self._moving, strict=True) if not moves)

    def _replaying(self) -> CapturedIteration:
        """Return the function of iterations that are captured."""
        program = self.program
        # `residents` has parameters, buffers and states first, then inputs, then constants.
        first = len(program.parameters) + len(program.buffers) + len(program.states)
        places = {program.values[value].storage: i for i, value in enumerate(program.residents)}
        changed = [(x, places[x]) for x in sorted(changed_residents(program)) if x in places]

        # For iterations that are not captured: this code writes the journal itself.
        alone = self._code.compile(**self._tools)

        def keep(residents: Sequence[Tensor]) -> None:
            self.journal.keep(*((x, residents[place]) for x, place in changed))

        def run(residents: Sequence[Tensor], settings: Sequence[Any]) -> Sequence[Tensor]:
            with self._watch.iteration():  # a graph's inputs and results are in addition to the plan
                return alone(residents, settings)

        return CapturedIteration(
            run=run,
            captured=self._code.compile(keep=_keep_nothing, expect=None),
            device=self.device,
            inputs=slice(first, first + len(program.inputs)),
            by_tensor={} if self._optimizer is None else self._optimizer.by_tensor(),
            before=keep,
            generators=tuple(each for each in program.generators.values() if each.device == program.device),
        )

    @property
    def _tools(self) -> dict[str, Any]:
        """Return the functions that the code of a schedule without transfers calls."""
        return {"keep": self.journal.keep, "expect": self.rooms and self.rooms.expect}

    @property
    def _moved(self) -> frozenset[int]:
        """Return the storages that the schedule moves."""
        return frozenset() if self.cycle is None else self.cycle.moved

    @cached_property
    def _overwritten(self) -> list[tuple[int, int]]:
        """The residents that change, as storages and places among all, in the order of their first change."""
        places = {self.program.values[value].storage: i for i, value in enumerate(self.program.residents)}
        changed = (x for one in self.program.operations for x in self.program.residents_changed(one))
        return [(x, places[x]) for x in dict.fromkeys(changed)]

    @cached_property
    def _changes(self) -> Changes:
        return Changes(self.program, self._moved)

    @property
    def budget(self) -> int | None:
        """Return the bytes on the device; None for no limit."""
        return None if self._terms is None else self._terms.budget

    @property
    def measured_peak(self) -> int | None:
        """Return the most bytes on the device in the first iterations.

        Returns None if its allocator does not count.
        """
        return self._watch.peak

    @property
    def device_room(self) -> int | None:
        """Return the bytes of the device that the step can have now, with those that its tensors have.

        None if the device does not say.
        """
        free, own = self.device.free_bytes(), self._watch.own_bytes
        if free is None or own is None:
            return None
        # A batch counts as the step's own. The device has it if the caller put it there, not if the step did.
        there = self.device.allocated_bytes() if isinstance(self.device, StreamDevice) else own
        return max(0, free + min(own, there))

    @property
    def host_bytes(self) -> int:
        """Return the bytes in host memory of what the schedule has moved there."""
        return 0 if self.cycle is None else self.cycle.host.count.bytes

    @property
    def graph_bytes(self) -> int:
        """Return the bytes on the device, in addition to the plan's, of a CUDA graph's inputs and results."""
        return 0 if self._graphs is None else self._graphs.extra_bytes

    @property
    def count_bytes(self) -> int:
        """Return the bytes on the device, in addition to the plan's, of the optimizer's step counts, and of
        the coefficient of early updates.
        """
        counts = 0 if self._optimizer is None else self._optimizer.count_bytes(self.device)
        return counts + coefficient_bytes(self.program, self.device)

    @property
    def undo_bytes(self) -> int:
        """Return the bytes in host memory, in addition to the schedule's, for what iterations overwrite; 0
        without `undo`.
        """
        return self.journal.host.count.bytes if self.journal.complete else 0

    def together(self, *, begins: bool = True) -> AbstractContextManager[None]:
        """Surround an iteration that other processes run too, each with a separate batch.

        begins: it is the first of its update.

        Raises MismatchError if it updates weights within `no_sync`.
        """
        if self._processes is None:
            return nullcontext()
        if any(map(averages, self.program.operations)):
            self._processes.check_syncs()
        # Buffers were made equal at the update's first batch.
        if not begins:
            return self._processes.together(())
        changed, tensors = changed_by_others(self.program), self._owners.tensors()
        named = {name: self.program.values[value].storage for name, value in self.program.buffers.items()}
        return self._processes.together(tensors[name] for name, x in named.items() if x in changed)

    def place(self) -> None:
        """Put all tensors into the memories in which an iteration starts, another step's too; an iteration
        does so if need be, and always if the optimizer has not all states, which it makes.
        """
        if self._optimizer is not None and not self._optimizer.complete:
            return
        if self.cycle is not None:
            self._ownership.take()
        stays = {value.storage for value in self.program.values} - self._moved
        bring_back(owner() for _name, owner in self._owners.of(stays).values())

    def restore_to_device(self) -> None:
        """Give module and optimizer back what the schedule moves, on the device, until the next iteration."""
        if self.cycle is not None:
            self._ownership.give_back()

    def release_graphs(self) -> None:
        """Give up the memory of CUDA graphs, until iterations are captured once more."""
        if self._graphs is not None:
            self._graphs.release()


def _keep_nothing(*_changing: Any) -> None:
    """Replace the journal in code that is captured: the journal is written before each replay."""
