"""A turn of a schedule with transfers, as straight-line Python: codegen.py's calls, and between them

    def step(residents, settings, carried, now, last, leaving, left):
        v0, v1, = residents
        d2, h2, k5, = carried                              # copies of persistent tensors
        v9 = f0(v1, v0)
        h9 = host(4096).open()                             # memory for a copy on the host
        now[3] = add(D2H, offload, (v9, h9), (), ())       # asynchronous
        leaving[4] = v9,                                   # a delete that is pending: its memory stays …
        del v9
        wait(now[3])                                       # … until a computation needs the room, and waits
        leaving.pop(4)
        …
        d9 = room(h9.size, device)
        now[8] = add(H2D, prefetch, (h9, d9), (last[7],), ())   # waits for a ticket of the turn before
        wait(now[8])
        v9 = value(d9, c4)                                 # the value that the copy has at its start

The names are indices: d, h and k of the storages of which they are copies on device, host and disk. `now`
and `last` are the tickets of this turn's jobs and of the turn before's, `leaving` and `left` their pending
deletes. What is to wait and when memory goes is the rehearsal's (rehearsal.py); pending copies on host and disk are
let go of by the job that needs their room. A prefetch that needs the room of one pending copy of the same
size takes over its very memory: so the computing goes on while the one leaves and the other comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..graphs.errors import MemplanError
from ..graphs.graph import Graph, Mode
from ..graphs.machine import Memory
from ..planner.clock import Queue
from ..planner.schedule import PLAIN, Schedule, Verb
from .codegen import Code, Writer
from .copies import loaded, offload, prefetch, raw, read, room, value, write
from .free_names import Name
from .host_calls import CpuOperation, HostCall
from .program import Operation, Program, Ref
from .rehearsal import FENCE, Ends, Leave, Turn

LETTERS = {Memory.DEVICE: "d", Memory.HOST: "h", Memory.DISK: "k"}


def generate_turn(
    program: Program, graph: Graph, schedule: Schedule, turn: Turn, carried: Sequence[Place]
) -> Code:
    """carried: the copies of persistent tensors that the turns hand on. Raises MemplanError for a mode that
    can't be run."""
    writer = _TurnWriter(program, graph, schedule, turn, carried)
    for step, (verb, target, where) in enumerate(schedule.rows()):
        if verb == Verb.COMPUTE:
            writer.computation(step, target, where)
        elif verb == Verb.DELETE:
            writer.leave(step, target, Memory(where))
        else:
            writer.transfer(step, target, Memory(where), prefetched=verb == Verb.PREFETCH)
    return writer.code()


Place = tuple[Memory, int]


class _TurnWriter(Writer):
    """there: copies that have a variable d, h or k. awaited: tickets the compute queue has waited for."""

    def __init__(
        self, program: Program, graph: Graph, schedule: Schedule, turn: Turn, carried: Sequence[Place]
    ) -> None:
        super().__init__(program, schedule)
        self.graph, self.schedule, self.turn, self.carried = graph, schedule, turn, carried
        self.there = set(carried)
        self.awaited: set[int] = set()
        self.sizes: list[int] = graph.tensors.bytes.tolist()
        self.has_values = {form.storage for form in program.values}
        moved = {storage for _memory, storage in carried}
        self.residents = tuple(v for v in self.residents if program.values[v].storage not in moved)
        for memory, storage in carried:
            self.held.pop(storage, None)
            if memory == Memory.DEVICE:
                self.held[storage] = set()
        things = (raw, room, value, loaded, offload, prefetch, read, write)
        self.names.things.update({thing.__name__: thing for thing in things})
        self.names.things.update({queue.name: queue for queue in Queue})
        self.wait(FENCE)

    # ── computations ────────────────────────────────────────────────────────────────────────────────

    def computation(self, step: int, index: int, mode_index: int) -> None:
        operation = self.program.operations[index]
        if mode_index == PLAIN:
            self.wait(step)
            self.compute(index)
            return
        mode = self.graph.operations.modes[index][mode_index - 1]
        operation = operation._replace(writes=mode.writes)
        self._check(operation, mode)
        if mode.on_host:
            self._on_cpu(step, operation, mode)
            return
        self.wait(step)
        if mode.reads_host:
            operation = operation._replace(call=self._reading_host(operation, mode))
        self.compute(index, operation)

    def _on_cpu(self, step: int, operation: Operation, mode: Mode) -> None:
        call = CpuOperation(self.program, operation, mode.workspace)
        made = [x for x in operation.writes if (Memory.HOST, x) not in self.there]
        for x in made:
            self.there.add((Memory.HOST, x))
            self.lines.append(f"h{x} = host({self.sizes[x]})")
        inputs = _tuple(f"h{x}" for x in call.inputs)
        results = ", ".join(f"{x}: h{x}" for x in made)
        arguments = f"(memory, settings, ({inputs}), {{{results}}})"
        self._add(step, Queue.CPU, self.names.of_thing(call), arguments)

    def _reading_host(self, operation: Operation, mode: Mode):
        call = HostCall(self.program, operation.call, mode.reads_host)
        blocks = (Name(f"h{x}") for x in call.storages)
        arguments = (Name("settings"), *blocks, *(Ref(v) for v in call.others))
        return replace(operation.call, target=call, arguments=arguments, keywords={})

    def _check(self, operation: Operation, mode: Mode) -> None:
        fault = None
        if mode.on_host and operation.random:
            fault = "it draws random numbers, which are the device's"
        elif mode.on_host and any(
            _names_device(part) for part in (*operation.call.arguments, *operation.call.keywords.values())
        ):
            fault = "its call names the device"
        elif mode.reads_host and self.program.device.type != "cpu":
            fault = f"PyTorch reads no host memory from {self.program.device.type}"
        if fault is not None:
            raise MemplanError(f"{operation.name} can't run in mode {mode.name} here: {fault}")

    # ── transfers and deletes ───────────────────────────────────────────────────────────────────────

    def transfer(self, step: int, x: int, to: Memory, *, prefetched: bool) -> None:
        if prefetched and to == Memory.DEVICE:
            self._to_device(step, x)
            self._add(step, Queue.H2D, "prefetch", f"(h{x}, d{x})")
        elif prefetched:
            self._to_host(step, x, f"k{x}.size")
            self._add(step, Queue.DISK_READ, "read", f"(k{x}, h{x})")
        elif to == Memory.HOST:
            source = self._on_device(x)
            self._to_host(step, x, f"raw({source}).nbytes" if source else str(self.sizes[x]))
            self._add(step, Queue.D2H, "offload", f"({source}, h{x})")
        else:
            if (Memory.DISK, x) not in self.there:
                self.there.add((Memory.DISK, x))
                self.lines.append(f"k{x} = file(h{x}.size)")
            self._add(step, Queue.DISK_WRITE, "write", f"(h{x}, k{x})")

    def leave(self, key: int, x: int, memory: Memory) -> None:
        names = self._names_of(x, memory)
        if key in self.turn.pending:
            self.lines.append(f"leaving[{key}] = ({_tuple(names)})")
        if names:
            self.lines.append(f"del {', '.join(names)}")
        self.there.discard((memory, x))
        if memory == Memory.DEVICE:
            self.held.pop(x, None)

    def _names_of(self, x: int, memory: Memory) -> list[str]:
        names = [f"{LETTERS[memory]}{x}"] if (memory, x) in self.there else []
        if memory == Memory.DEVICE:
            names = [f"v{v}" for v in sorted(self.held.get(x, ()))] + names
        return names

    def _on_device(self, x: int) -> str | None:
        """A variable in the storage's copy on the device; None where nobody reads it."""
        names = self._names_of(x, Memory.DEVICE)
        return names[0] if names else None

    def _to_device(self, step: int, x: int) -> None:
        """A variable d for a prefetch to fill."""
        if (Memory.DEVICE, x) in self.there:
            return
        names = self._names_of(x, Memory.DEVICE)
        self.there.add((Memory.DEVICE, x))
        if names:
            self.lines.append(f"d{x} = raw({names[0]})")
            return
        self.held[x] = set()
        ends = self.turn.ends.get(step)
        if ends is not None and [self._size_left(delete) for delete in ends.deletes] == [self.sizes[x]]:
            self.lines.append(f"d{x} = raw({_popped(ends.deletes[0])}[0])")
            return
        if ends is not None:
            self._wait_for(ends.transfers)
            self._pop(ends)
        self.lines.append(f"d{x} = room(h{x}.size, device)")

    def _to_host(self, step: int, x: int, size: str) -> None:
        if (Memory.HOST, x) not in self.there:
            self.there.add((Memory.HOST, x))
            late = step in self.turn.late
            self.lines.append(f"h{x} = host({size})" + ("" if late else ".open()"))

    def _size_left(self, delete: Leave) -> int | None:
        """Bytes of a pending delete; None for a result that nobody reads, which has no variable."""
        _ago, key = delete
        steps = len(self.schedule)
        x = self.schedule.targets.item(key) if key < steps else (key - steps) // len(Memory)
        return self.sizes[x] if x in self.has_values else None

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────

    def wait(self, step: int) -> None:
        """The compute queue waits for all that this step waits for."""
        self._wait_for(self.turn.waits.get(step, ()))
        if (ends := self.turn.ends.get(step)) is not None:
            self._pop(ends)

    def _wait_for(self, steps: Sequence[int]) -> None:
        for step in steps:
            if step not in self.awaited:
                self.awaited.add(step)
                self.lines.append(f"wait({self._ticket(step)})")

    def _pop(self, ends: Ends) -> None:
        self.lines.extend(_popped(delete) for delete in ends.deletes if delete[0] < 2)

    def _add(self, step: int, queue: Queue, work: str, arguments: str) -> None:
        after = "".join(f"{self._ticket(other)}, " for other in self.turn.waits.get(step, ()))
        ends = self.turn.ends.get(step)
        on_device = queue == Queue.H2D
        gone = "" if ends is None or on_device else "".join(f"{_popped(delete)}, " for delete in ends.deletes)
        self.lines.append(f"now[{step}] = add({queue.name}, {work}, {arguments}, ({after}), ({gone}))")

    def _ticket(self, step: int) -> str:
        return f"now[{step}]" if step >= 0 else f"last[{step + len(self.schedule)}]"

    # ── the whole ───────────────────────────────────────────────────────────────────────────────────

    def code(self) -> Code:
        results = [self._result(value) for value in (self.program.loss, *self.program.gradients.values())]
        steps = len(self.schedule)
        for key in sorted(key for key in self.turn.pending if key >= steps):
            x, memory = divmod(key - steps, len(Memory))
            names = self._names_of(x, Memory(memory))
            self.lines.append(f"leaving[{key}] = ({_tuple(names)})")
        carried = _tuple(f"{LETTERS[memory]}{x}" for memory, x in self.carried)
        first = [
            f"({_tuple(f'v{value}' for value in self.residents)}) = residents",
            f"({carried}) = carried",
            "carried.clear()",
        ]
        body = "\n    ".join([*first, *self.lines, f"return ({_tuple(results)}), [{carried}]"])
        source = f"def step(residents, settings, carried, now, last, leaving, left):\n    {body}\n"
        return Code(source, self.names.things, self.residents)

    def _result(self, result: int) -> str:
        """An expression for a result, wherever it is."""
        form = self.program.values[result]
        memory, makers = self.turn.results[form.storage]
        self._wait_for(makers)
        if memory == Memory.DEVICE:
            self._need(result)
            return f"v{result}"
        self.lines.extend(f"{self._ticket(step)}.wait()" for step in makers)
        bytes_ = f"h{form.storage}.bytes" if memory == Memory.HOST else f"loaded(k{form.storage})"
        return f"value({bytes_}, {self.names.of_thing(form)})"

    def _need(self, value: int) -> None:
        """The values that a copy has at its start are made from its bytes."""
        form = self.program.values[value]
        held = self.held[form.storage]
        if value not in held and value not in self.program.views:
            held.add(value)
            self.lines.append(f"v{value} = value(d{form.storage}, {self.names.of_thing(form)})")
            return
        super()._need(value)


def _tuple(names: Iterable[str]) -> str:
    return "".join(f"{name}, " for name in names)


def _popped(delete: Leave) -> str:
    ago, key = delete
    return f"{('leaving', 'left')[ago]}.pop({key})"


def _names_device(argument: Any) -> bool:
    if isinstance(argument, tuple | list):
        return any(map(_names_device, argument))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(argument, torch.device) and argument.type != "cpu"
