"""A schedule as straight-line Python: one line per call, one `del` per delete.

    def step(residents, settings):                # the tensors and numbers that the caller brings
        v0, v1, v2, … = residents
        v9 = f0(v2, v1)                           # compute
        v10 = f1(v9, c0)                          # a view, or a chain of them, at its first use
        del v9, v10                               # delete: the storage with every view of it
        …
        return v41, v40, v37                      # loss, outputs and gradients

Between the two halves of an iteration that is part of a larger graph it is a generator:

        v9, = yield v5, v6,                       # the outputs, for their gradients

Before a call that changes a storage in place, `keep((3, v7))` has the journal (devices/storage/journal.py)
note it. The names are indices: of values (v), of targets (f), of arguments that are not simple numbers (c)
and of saved generator states (s). Nothing in the source comes from a name in a file. A storage is freed when
the last value in it is deleted, so every line that follows a `del` has that memory.

A recomputed operation makes all its results once more; those that are there already are dropped at once.
A random operation that will be recomputed has the generator's state saved before its first run, restored
for the next ones and put back after them: numbers are drawn once, in eager's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ...devices.calls.randomness import restore_generator, save_generator
from ...devices.device.choice import device_of
from ...devices.device.device import Device, StreamDevice
from ...devices.device.planned_arena import Request
from ...planner.schedule.schedule import Initial, Schedule, Verb
from ...program.free_names import FreeNames
from ...program.handover import HANDOVER
from ...program.program import Call, Operation, Program, values_read
from .direct_calls import direct_call
from .placement import Placement
from .views import Same, Views


class Code(NamedTuple):
    """The source of a schedule's function and what it needs to run.

    source: of a function `step`.
    names: its free names and what they stand for.
    residents: the values that it takes.
    """

    source: str
    names: Mapping[str, Any]
    residents: tuple[int, ...]

    def compile(self, **tools: Any) -> Callable[..., Any]:
        """Compile the source and return the function `step`.

        tools: further free names.
        """
        names = {**self.names, **tools}
        exec(compile(self.source, "<memplan schedule>", "exec"), names)
        return names.pop("step")  # else it would hold itself, and what it holds


def is_plain(schedule: Schedule) -> bool:
    """Tell whether the schedule has no transfers and no execution variants, and keeps all on the device."""
    moves = (schedule.verbs == Verb.OFFLOAD) | (schedule.verbs == Verb.PREFETCH)
    return not (moves.any() or schedule.wheres.any() or schedule.initial != Initial())


def generate(
    program: Program,
    schedule: Schedule,
    device: Device | None = None,
    *,
    timed: bool = False,
    placement: Placement | None = None,
) -> Code:
    """Generate the code of a schedule without transfers; see iteration.py for others.

    device: the program's by default.
    timed: the code calls `mark()` before each computation and after the last.
    placement: the code calls `expect(…)` before what takes memory that has a planned address.
    """
    writer = Writer(program, schedule, device or device_of(program.device), timed=timed, placement=placement)
    for step, (verb, target, _where) in enumerate(schedule.rows()):
        writer.step = step
        if verb == Verb.COMPUTE:
            writer.compute(target)
        else:
            writer.delete(target)
    return writer.code()


class Writer:
    """Writer of a schedule's source, line by line.

    held: per storage that is resident, its values that have a local variable.
    step: index of the schedule's step that is being written.
    """

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        device: Device,
        *,
        timed: bool = False,
        placement: Placement | None = None,
    ) -> None:
        self.program, self.device, self.timed, self.placement = program, device, timed, placement
        self.step = -1
        self.lines: list[str] = []
        self.names = FreeNames(save=save_generator, restore=restore_generator, device=device)
        runs = schedule.targets[schedule.verbs == Verb.COMPUTE].tolist()
        self.runs_left = Counter[int](runs)
        self.saved: set[int] = set()
        self.residents = program.residents
        self.views = Views(program)
        self.held: dict[int, set[int]] = {}
        for value in self.residents:
            self.held.setdefault(program.values[value].storage, set()).add(value)

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────

    def compute(self, index: int, operation: Operation | None = None) -> None:
        """Write a computation.

        index: of the operation in the program.
        operation: another form of that operation, by default the one that the device launches.
        """
        if self.program.operations[index].call.target is HANDOVER:
            self._hand_over(self.program.operations[index])
            return
        operation = operation or self.launched(self.program.operations[index])
        self.mark()
        for value in values_read(operation.call):
            self._need(value)
        self.runs_left[index] -= 1
        self._keep(operation)  # before the call: the journal notes what it is about to overwrite
        if operation.random and (index in self.saved or self.runs_left[index]):
            self._replayed(index, operation)
        else:
            self._run(operation)

    def _hand_over(self, operation: Operation) -> None:
        self.mark()
        outputs = self.program.outputs.values()
        for value in outputs:
            self._need(value)
        for storage in operation.writes:
            self.held[storage] = set()
        self._assign(
            operation.call, {*operation.call.outputs}, f"yield {', '.join(f'v{value}' for value in outputs)},"
        )

    def mark(self) -> None:
        if self.timed:
            self.lines.append("mark()")

    def delete(self, storage: int) -> None:
        values = self.held.pop(storage, set())
        if values:
            self.lines.append(f"del {', '.join(f'v{value}' for value in sorted(values))}")

    def code(self) -> Code:
        self.mark()
        results = self.program.returned
        for value in results:
            self._need(value)
        # The commas before `=` and at the end make tuples of one name too.
        first = f"{', '.join(f'v{value}' for value in self.residents)}, = residents"
        last = f"return {', '.join(f'v{value}' for value in results)}," if results else "return ()"
        body = "\n    ".join((first, *self.lines, last))
        return Code(f"def step(residents, settings):\n    {body}\n", self.names.things, self.residents)

    def launched(self, operation: Operation, workspace: int = 0) -> Operation:
        """Return the operation as the device runs it."""
        target = self.device.launched(self.program, operation, workspace)
        return operation._replace(call=replace(operation.call, target=target))

    def _keep(self, operation: Operation) -> None:
        """Write the call that notes in the journal what the operation is about to change in place."""
        if changed := self.program.residents_changed(operation):
            values = {self.program.values[value].storage: value for value in values_read(operation.call)}
            self.lines.append(f"keep({', '.join(f'({x}, v{values[x]})' for x in changed)})")

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────

    def _replayed(self, index: int, operation: Operation) -> None:
        drawn_from = self.program.source_of(operation)
        # A device that queues its work knows when its own generator may be read; others are read at once.
        queued = isinstance(self.device, StreamDevice) and drawn_from == self.program.device
        source = "device" if queued else self.names.of_thing(drawn_from)
        if index not in self.saved:
            self.saved.add(index)
            self.lines.append(f"s{index} = save({source})")
            self._run(operation)
            return
        # The numbers of the first run are drawn anew, and the generator goes on from where it was.
        self.lines.append(f"drawn = save({source})")
        self.lines.append(f"restore({source}, s{index})")
        self._run(operation)
        self.lines.append(f"restore({source}, drawn)")

    def _run(self, operation: Operation) -> None:
        call = operation.call
        # Results that are there already are made once more by a recomputation, and get no variable.
        made = [storage for storage in operation.writes if storage not in self.held]
        if self.placement is not None:
            there = set(operation.writes).difference(made)
            self.expect(self.placement.computation(self.step, operation.writes, there))
        for storage in made:
            self.held[storage] = set()
        self._assign(call, {value for value in call.outputs if self._lies_in(value, made)})

    def expect(self, requests: Iterable[Request]) -> None:
        self.lines.append(f"expect({', '.join(map(str, requests))})")

    def _need(self, value: int) -> None:
        """Make sure that the value has a local variable: compute it if it is a view."""
        held = self.held[self.program.values[value].storage]
        if value in held:
            return
        made = self.views.make(value, held)
        if isinstance(made, Same):
            self._need(made.base)
            held.add(value)
            self.lines.append(f"v{value} = v{made.base}")
            return
        for base in values_read(made):
            self._need(base)
        self._assign(made, {output for output in made.outputs if output is not None})

    def _assign(self, call: Call, kept: set[int | None], text: str | None = None) -> None:
        """Write `v1, _, v3 = f(…)`: the results in `kept` get a variable, the others are dropped at once;
        `f(…)` if there are none.

        text: the right side, by default the call.
        """
        names = [f"v{value}" if value in kept else "_" for value in call.outputs]
        for value in kept:
            if value is not None:
                self.held[self.program.values[value].storage].add(value)
        left = ", ".join(names) + ("," if call.several and len(names) == 1 else "")
        text = text or self.names.of_call(direct_call(self.program, call))
        self.lines.append(f"{left} = {text}" if names else text)
        if "_" in names:
            self.lines.append("del _")

    def _lies_in(self, value: int | None, storages: list[int]) -> bool:
        return value is not None and self.program.values[value].storage in storages
