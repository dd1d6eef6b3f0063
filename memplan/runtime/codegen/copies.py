"""The lines of an iteration that are not calls: copies, deletes, and waits. See iteration.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...devices.calls.collectives import communicate
from ...devices.device.device import Device
from ...devices.storage.copies import loaded, raw, value
from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ...planner.addresses.layout import Layout
from ...planner.schedule.schedule import Schedule, Verb
from ...planner.simulator.clock import Queue, source_of
from ...program.program import Program, Value
from .codegen import Writer
from .dry_run import FENCE, Ends, IterationCode, Leave, copy_of_key
from .placement import Placement

LETTERS = {Memory.DEVICE: "d", Memory.HOST: "h", Memory.DISK: "k"}
"""The memories that the runtime has, by the letter of the variables for copies there."""

JOBS = {Queue.D2H: "offload", Queue.H2D: "prefetch", Queue.DISK_WRITE: "write", Queue.DISK_READ: "read"}
"""The function that makes a copy, by the transfer queue: (devices/storage/copies.py)."""

Place = tuple[int, int]
"""A copy: its memory and its storage."""


def variable(memory: int, x: int) -> str:
    return f"{LETTERS[Memory(memory)]}{x}"


class CopyWriter(Writer):
    """Writer of the lines for copies, deletes and waits.

    there: copies that have a variable d, h or k.
    awaited: tickets that the compute queue has waited for.
    collective: the steps of the one that is being written, and their arguments.
    issued: steps of collectives that are operations, not waited for yet: their variable p is there.

    files_are_late: some take room on the disk that a job lets go of: then each takes it when it is written,
    in the order of the queue that writes.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        schedule: Schedule,
        iteration: IterationCode,
        carried: Sequence[Place],
        device: Device,
        *,
        timed: bool = False,
        addresses: Layout | None = None,
        placement: Placement | None = None,
    ) -> None:
        super().__init__(program, schedule, device, timed=timed, placement=placement)
        self.graph, self.addresses = graph, addresses
        self.schedule, self.iteration, self.carried = schedule, iteration, carried
        self.there = set(carried)
        self.awaited: set[int] = set()
        self.collective: dict[int, str] = {}
        self.issued: set[int] = set()
        self.sizes: list[int] = graph.tensors.bytes.tolist()
        self.ends = program.ends | {x: self.sizes[x] for x in graph.tensors.spread}  # with their padding
        to_disk = (schedule.verbs == Verb.OFFLOAD) & (schedule.wheres == Memory.DISK)
        self.files_are_late = any(step >= 0 and bool(to_disk[step]) for step in iteration.ends)
        self.moved = {storage for _memory, storage in carried}
        self.residents = tuple(v for v in self.residents if program.values[v].storage not in self.moved)
        for storage in self.moved:
            self.held.pop(storage, None)
        self.held |= {storage: set() for memory, storage in carried if memory == Memory.DEVICE}
        things = (raw, value, loaded)
        self.names.things.update({thing.__name__: thing for thing in things})
        self.names.things.update({queue.name: queue for queue in Queue})
        self.names.things["communicate"] = communicate
        self.wait(FENCE)

    # ── copies and deletes ──────────────────────────────────────────────────────────────────────────

    def transfer(self, step: int, x: int, queue: Queue, to: int) -> None:
        """Write the lines of a copy to a memory from its neighbour."""
        is_new, of = (to, x) not in self.there, source_of(queue)
        if x in self.graph.tensors.spread:
            self._between_ranks(step, x, to)
            if x in self.moved and is_new:
                self.lines.append(f"held['{variable(to, x)}'] = {variable(to, x)}")
            return
        source = self._on_device(x) if of == Memory.DEVICE else variable(of, x)
        if of != Memory.DEVICE:
            size = f"{source}.size"
        else:  # a result that nobody reads has no variable
            size = f"raw({source}).nbytes" if source else str(self.sizes[x])
        make = {Memory.DEVICE: self._to_device, Memory.HOST: self._to_host, Memory.DISK: self._to_disk}
        make[Memory(to)](step, x, size)
        self.add([step], queue, JOBS[queue], f"({source}, {variable(to, x)})")
        if x in self.moved and is_new:
            self.lines.append(f"held['{variable(to, x)}'] = {variable(to, x)}")

    def _between_ranks(self, step: int, x: int, to: int) -> None:
        """Write the lines of a gather or a scatter. Variable h of a spread tensor is this rank's share.

        The last step of a collective gives the job of them all. Until then nothing waits for it: what is
        between its steps only has memory for their copies (planner/simulator/collectives.py).
        """
        if to == Memory.DEVICE:
            self._to_device(step, x, str(self.sizes[x]))
            self.collective[step] = f"(h{x}, d{x})"
        else:
            source = self._on_device(x)
            if (Memory.PEERS, x) not in self.there:
                self.there.add((Memory.PEERS, x))
                self._leave_room(self.iteration.ends.get(step))
                self.lines.append(f"h{x} = share({self.names.of_thing(self._gradient(x))})")
            self.collective[step] = f"({source}, h{x})"
        if step + 1 not in self.iteration.joined:  # the last of the collective
            work = "gather" if to == Memory.DEVICE else "scatter"
            self.add(list(self.collective), Queue.COMM, work, f"({tuple_of(self.collective.values())})")
            self.collective.clear()

    def _gradient(self, x: int) -> Value:
        """Return the form of the gradient whose storage is x."""
        return next(form for form in self.program.values if form.storage == x)

    def leave(self, key: int, x: int, memory: int) -> None:
        names = self.names_of(x, memory)
        self.wait_for(self.iteration.waits.get(key, ()))
        if key in self.iteration.pending:
            self.lines.append(f"leaving[{key}] = ({tuple_of(names)})")
        if x in self.moved:
            names.append(f"held['{variable(memory, x)}']")
        if names:
            self.lines.append(f"del {', '.join(names)}")
        self.there.discard((memory, x))
        if memory == Memory.DEVICE:
            self.held.pop(x, None)

    def names_of(self, x: int, memory: int) -> list[str]:
        names = [variable(memory, x)] if (memory, x) in self.there else []
        if memory == Memory.DEVICE:
            names = [f"v{v}" for v in sorted(self.held.get(x, ()))] + names
        return names

    def _on_device(self, x: int) -> str | None:
        """Return a variable in the storage's copy on the device; None if nobody reads it."""
        names = self.names_of(x, Memory.DEVICE)
        return names[0] if names else None

    def _to_device(self, step: int, x: int, size: str) -> None:
        """Write a variable d for a prefetch to fill.

        size: an expression for its bytes.
        """
        if (Memory.DEVICE, x) in self.there:
            return
        names = self.names_of(x, Memory.DEVICE)
        self.there.add((Memory.DEVICE, x))
        if names:
            self.lines.append(f"d{x} = raw({names[0]})")
            return
        self.held[x] = set()
        if self.placement is not None:
            self.expect([self.placement.copy(step, x)])
        ends = self.iteration.ends.get(step)
        # With planned addresses each copy has its own: it can't take over another's memory.
        one = ends.deletes if ends is not None and self.placement is None else ()
        if len(one) == 1 and self._fits(x, one[0]):
            self.lines.append(f"d{x} = raw({_popped(one[0])}[0])")
            return
        self._leave_room(ends)
        self.lines.append(f"d{x} = room({size})")

    def _leave_room(self, ends: Ends | None) -> None:
        if ends is not None:
            self.wait_for(ends.transfers)
            self._pop(ends)

    def _to_host(self, step: int, x: int, size: str) -> None:
        if (Memory.HOST, x) not in self.there:
            self.there.add((Memory.HOST, x))
            late = step in self.iteration.late
            made = f"h{x} = host({size}{self.address(step, x)})"
            self.lines.append(made if late else f"{made}.open()")

    def _to_disk(self, _step: int, x: int, size: str) -> None:
        if (Memory.DISK, x) not in self.there:
            self.there.add((Memory.DISK, x))
            late = "" if self.files_are_late else ".open()"
            self.lines.append(f"k{x} = file({size}){late}")

    def address(self, step: int, x: int) -> str:
        """Return, as further arguments, the offset and size that the plan gives the host copy made at `step`.

        Returns an empty string if the copy has no planned address.
        """
        offset = None if self.addresses is None else self.addresses.at(x, step)
        return "" if offset is None else f", {offset}, {self.sizes[x]}"

    def _fits(self, x: int, delete: Leave) -> bool:
        """Tell whether x may lie in the very memory that a pending delete leaves.

        Sizes are whole blocks of the allocator, memory is not: it has room for the values that lay in it. A
        result that nobody reads has no values, and no variable.
        """
        _ago, key = delete
        steps = len(self.schedule)
        if key < steps and self.schedule.verbs.item(key) == Verb.COMPUTE:
            return False  # what a collective held for itself
        left = self.schedule.targets.item(key) if key < steps else copy_of_key(steps, key)[1]
        room = self.ends.get(left)
        return room is not None and self.sizes[left] == self.sizes[x] and room >= self.ends.get(x, 0)

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────

    def wait(self, step: int) -> None:
        """Write the compute queue's wait for all that this step waits for."""
        self.wait_for(self.iteration.waits.get(step, ()))
        if (ends := self.iteration.ends.get(step)) is not None:
            self._pop(ends)

    def wait_for(self, steps: Sequence[int]) -> None:
        for step in self.due(steps):
            if step not in self.awaited:
                self.awaited.add(step)
                self.lines.append(f"wait({self.ticket(step)})")
                if step in self.issued:
                    self.issued.remove(step)
                    self.lines.append(f"del p{step}")

    def _pop(self, ends: Ends) -> None:
        # `left` and `leaving` hold two iterations' deletes; older ones were dropped with their dict.
        self.lines.extend(_popped(delete) for delete in ends.deletes if delete[0] < 2)

    def add(
        self, steps: Sequence[int], queue: Queue, work: str, arguments: str, *, waited: bool = False
    ) -> None:
        """Write a job; its ticket is that of each of the steps, of which only collectives have several.

        waited: the compute queue has waited for all that it waits for.
        """
        waits = {other for step in steps for other in self.iteration.waits.get(step, ()) if not waited}
        after = tuple_of(self.ticket(other) for other in self.due(sorted(waits)))
        ends = self.iteration.ends.get(steps[-1])
        # On the device the computing queue frees memory, in the lines above; elsewhere the job does.
        on_device = queue in (Queue.H2D, Queue.COMM)
        gone = "" if ends is None or on_device else "".join(f"{_popped(delete)}, " for delete in ends.deletes)
        tickets = " = ".join(f"now[{step}]" for step in steps)
        self.lines.append(f"{tickets} = add({queue.name}, {work}, {arguments}, ({after}), ({gone}))")

    def due(self, steps: Sequence[int]) -> list[int]:
        """Return those of this iteration and of the one before: what is older has ended when an iteration
        starts.
        """
        return [step for step in steps if step >= -len(self.schedule)]

    def ticket(self, step: int) -> str:
        return f"now[{step}]" if step >= 0 else f"last[{step + len(self.schedule)}]"

    def _need(self, value: int) -> None:
        """Make the values that a copy has at its start from its bytes; other values as usual."""
        form = self.program.values[value]
        held = self.held[form.storage]
        if value not in held and value not in self.program.views:
            held.add(value)
            self.lines.append(f"v{value} = value(d{form.storage}, {self.names.of_thing(form)})")
            return
        super()._need(value)


def tuple_of(names: Iterable[str]) -> str:
    """Return the names as the inside of a tuple: each followed by a comma and a space."""
    return "".join(f"{name}, " for name in names)


def _popped(delete: Leave) -> str:
    ago, key = delete
    return f"{('leaving', 'left')[ago]}.pop({key})"
