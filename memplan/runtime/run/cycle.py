"""Iterations of a schedule with transfers: a cycle, in which each iteration starts with what the one
before left.

Iterations that begin in equal states run the same code; the first and the second mostly have separate code.
No iteration starts before the jobs of the iteration before the last have ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ...devices.device.choice import device_of
from ...devices.device.device import Device, StreamDevice
from ...devices.sharded.shards import Shards
from ...devices.storage.arena import Arena, pinned_arena
from ...devices.storage.copies import offload, prefetch, raw, read, write
from ...devices.storage.disk import Disk, File
from ...devices.storage.host_buffers import Host, HostBuffer
from ...devices.storage.journal import Journal
from ...devices.storage.offloaded import Fill
from ...graphs.errors import MemplanError
from ...graphs.graph import Graph
from ...graphs.machine import Links, Machine, Memory
from ...planner.addresses.layout import Layout
from ...planner.addresses.pinned import pinned_layout
from ...planner.errors import InvalidScheduleError
from ...planner.schedule.schedule import Schedule, Verb
from ...planner.simulator.clock import Queue
from ...planner.simulator.simulate import simulate
from ...program.graph import Cost, graph_of
from ...program.program import Program
from ...program.state_blocks import whole_states
from ...torch_support.unsupported import warn_user
from ...updates.buckets import buckets_of
from ...updates.clipping import clip_over_ranks
from ..codegen.copies import LETTERS, Place, variable
from ..codegen.dry_run import DryRun, IterationCode
from ..codegen.iteration import generate_iteration
from .arena import Rooms
from .queues import Queues, Ticket
from .stopwatch import Stopwatch
from .streams import Streams

_Code = Callable[..., Any]

LOST = (
    "an iteration failed between its updates: load the weights and the optimizer's states, then go on; "
    "optimize(…, rollback_on_error=True) takes such an iteration back"
)

LOST_AMONG_RANKS = (
    "an iteration failed on this rank, and its collectives with it, so that all ranks end: start them anew, "
    "from a checkpoint"
)


BETWEEN = (
    "a planned module that offloads weights was called, and its backward has not run: call backward() before "
    "its weights are used, or drop its outputs"
)


class Terms(NamedTuple):
    """Conditions under which a schedule runs.

    graph: the schedule's.
    budget: device bytes, None for no limit.
    machine: the graph's by default.
    folder: where to offload to the disk; by default the system's folder for temporary files.
    device: the one that computes, the program's by default.
    left: bytes of host memory that another step is about to release.
    layout: planned addresses on the device.
    """

    graph: Graph
    budget: int | None = None
    machine: Machine | None = None
    folder: Path | None = None
    device: Device | None = None
    left: int = 0
    layout: Layout | None = None

    @staticmethod
    def unlimited(program: Program) -> Terms:
        """Return terms without limits: room everywhere, and all links."""
        graph = graph_of(program, [Cost(0.0)] * len(program.operations))
        return Terms(graph, machine=Machine(links=Links(1.0, 1.0, 1.0, 1.0)))


class Cycle:
    """Iterations of a schedule with transfers, each of which starts with what the one before left.

    sources: the code of each iteration that differs.
    moved: the persistent storages that the schedule moves, the other blocks of rows of states of which it
        moves one, and buckets.
    held: every copy of these, by the name of its variable: between iterations those of `places`. The code of
        an iteration notes here at once which copies it makes and deletes, so that none is known to it alone.
    lost: storages that a failure has left in between.
    when_lost: called after such a failure, to drop them.
    lost_line: what is then said.
    """

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        terms: Terms,
        journal: Journal | None = None,
        rooms: Rooms | None = None,
        shards: Shards | None = None,
        *,
        ends_jobs: bool = False,
    ) -> None:
        """Prepare the memories and queues of a schedule.

        journal: of what the iterations overwrite.
        ends_jobs: each iteration waits for its jobs, so that it can be undone if one of them fails.
        rooms: planned ones, on the device.
        shards: of the tensors that are spread over ranks.

        Raises MemplanError if the schedule does not hold, or can't be run here.
        """
        graph, budget, machine, folder, device, left, layout = terms
        machine = machine or graph.machine
        # A schedule that does not hold is refused before any memory is taken for it.
        figures = simulate(graph, schedule, budget=budget, machine=machine).figures
        _check_memories(schedule, machine or Machine())
        kept = 0
        if journal is not None and journal.complete:
            kept, capacity = journal.bytes, machine and machine.host_capacity
            if machine is not None and capacity is not None:
                machine = replace(machine, host_capacity=max(0, capacity - kept))
                try:  # with less memory, copies to the host wait for room
                    figures = simulate(graph, schedule, budget=budget, machine=machine).figures
                except InvalidScheduleError:
                    raise journal.shortage(figures.host_peak, capacity) from None
        self.program, self.graph, self.schedule = program, graph, schedule
        self.device = device or device_of(program.device)
        self.places = _places(graph, schedule, program)
        self._homes: dict[int, list[int]] = {}
        for memory, storage in self.places:
            self._homes.setdefault(storage, []).append(memory)
        self.moved = frozenset(self._homes)
        self.addresses, self._limit = None, None
        if isinstance(self.device, StreamDevice) and not (machine and machine.unpinned):
            self._limit = machine and machine.pinned
            machine, self.addresses = pinned_layout(
                graph, schedule, budget=budget, machine=machine or Machine()
            )
            figures = simulate(graph, schedule, budget=budget, machine=machine).figures
        self.figures, self._rooms = figures, rooms
        # The journal has checked its own bytes, but has not taken them yet.
        self.host = Host(figures.host_peak, left=left - kept, arena=self._arena())
        self.disk = Disk(figures.disk_peak, folder) if figures.disk_peak else None
        ranks = graph.communicates
        self.queues = (
            Streams(self.device, ranks=ranks)
            if isinstance(self.device, StreamDevice)
            else Queues(ranks=ranks)
        )
        self._shards = shards
        self.lost_line = LOST
        self.sources: list[str] = []
        self._rehearsal = DryRun(
            graph,
            schedule,
            budget=budget,
            machine=machine,
            addresses=self.addresses,
            layout=rooms and layout,
        )
        self.stopwatch: Stopwatch | None = None
        self._iterations: dict[str, IterationCode] = {}
        self._codes: dict[tuple[str, Stopwatch | None], tuple[_Code, tuple[int, ...]]] = {}
        self.journal = journal or Journal(self.device, {})
        self.held: dict[str, Any] = {}
        self.lost: set[int] = set()
        self.when_lost: Callable[[], None] = self.lost.clear
        self._suspended, self._abandoned, self._ends_jobs = False, None, ends_jobs
        self._placed: set[int] = set()
        self._salvaged: dict[int, Tensor | HostBuffer | File] = {}
        self._begin()
        self._code()  # now, not in the first iteration: whatever can't be run is refused before training
        # The threads hold their queues, not this cycle: without an end they would outlive it.
        weakref.finalize(self, self.queues.close)

    def _arena(self) -> Arena | None:
        """Allocate the pinned arena: of the layout's size, or as much of it as is allowed."""
        planned = 0 if self.addresses is None else self.addresses.size
        size = planned if self._limit is None else min(planned, self._limit)
        arena = pinned_arena(self.device, size, self._limit) if size else None
        if arena is not None and size < planned:
            warn_user(
                f"copies to and from the device take {planned:,} bytes of pinned memory as they are laid "
                f"out, host.pinned is {size:,}: those above are not pinned, and slower than planned"
            )
        return arena

    def unpin(self) -> None:
        """Give the pinned memory back, before another cycle that replaces this one takes its own.

        Copies in it move to separate memory until one of the two cycles has them pinned. Raises MemplanError.
        """
        self.end_jobs()
        self.settle()
        self.host.arena = None
        for copy in (*self.held.values(), *self._salvaged.values()):
            if isinstance(copy, HostBuffer) and copy.is_pinned:
                copy.lie(None)

    def pin(self) -> None:
        """Take pinned memory after all, if no other cycle has replaced this one."""
        self.host.arena = self._arena()
        for memory, storage in self.places:
            if isinstance(copy := self.held.get(variable(memory, storage)), HostBuffer):
                self._pin(storage, copy)

    def _pin(self, storage: int, block: HostBuffer) -> None:
        offset = None if self.addresses is None else self.addresses.initial(storage)
        if offset is not None and self.host.arena is not None and not block.is_pinned:
            block.lie(offset, int(self.graph.tensors.bytes[storage]))

    def timed_by(self, stopwatch: Stopwatch | None) -> None:
        """Time iterations from now on; None: nobody times them, and what an earlier stopwatch needed is
        dropped.
        """
        self.stopwatch = stopwatch
        self._codes = {key: code for key, code in self._codes.items() if key[1] in (None, stopwatch)}

    def put(self, storage: int, on_device: Tensor) -> None:
        """Put a moved storage into the memories in which an iteration starts with it.

        on_device: its bytes, not to be used afterwards.
        """
        self.settle()
        self._put(storage, on_device)

    def make(self, storage: int, size: int, fill: Fill) -> None:
        """Materialize a moved storage in the memories in which an iteration starts with it.

        size: bytes.
        fill: writes the values.
        """
        self.settle()
        self._placed_at(storage, partial(self._filled, storage=storage, size=size, fill=fill))
        self.device.synchronize()

    def adopt(self, storage: int, copies: Sequence[Tensor | HostBuffer | File]) -> bool:
        """Take over another plan's finished copies of a moved storage.

        Returns False, and takes nothing, if they are not in the memories in which an iteration starts with
        it.
        """
        if not self.adopts(storage, copies):
            return False
        by_memory = _by_memory(copies)
        self.settle()
        for copy in copies:
            if isinstance(copy, HostBuffer):
                copy.move(self.host)
                self._pin(storage, copy)
        if isinstance(there := by_memory.get(Memory.DEVICE), Tensor):
            by_memory[Memory.DEVICE] = self._on_device(storage, there)
        self._placed_at(storage, by_memory.__getitem__)
        return True

    def adopts(self, storage: int, copies: Sequence[Tensor | HostBuffer | File]) -> bool:
        """Tell whether `adopt` would take these copies over."""
        by_memory = _by_memory(copies)
        return len(by_memory) == len(copies) and set(self._homes[storage]) == by_memory.keys()

    def get(self, storage: int) -> Tensor:
        """Return the bytes of a moved storage, on the device."""
        return self._fetched(self._copies(storage)[0])

    def copies(self, storage: int) -> list[Tensor | HostBuffer | File]:
        """Return all copies of a moved storage, to be read and written by the host; not to be kept."""
        found = self._copies(storage)
        self.end_jobs()
        return found

    def drop(self, storage: int) -> None:
        """Let go of a moved storage, until it is put here once more."""
        self._salvaged.pop(storage, None)
        self._placed.discard(storage)
        self.lost.discard(storage)
        for memory in LETTERS:
            self.held.pop(variable(memory, storage), None)

    def run_iteration(self, residents: Sequence[Tensor], settings: Sequence[float]) -> tuple[Tensor, ...]:
        """Run one iteration and return the results.

        residents: the program's; the moved ones are empty.
        """
        code, given, following = self._prepared(residents)
        del residents  # a storage is freed by the code's own `del` only if nobody else holds it
        tickets, deletes = (self._now, self._last), (self._leaving, self._left)
        results = code(given, settings, self.held, *tickets, *deletes)
        if self._ends_jobs:  # all can be undone, so copies of this iteration must not fail in the next
            for ticket in self._now.values():
                ticket.wait()
        self._state = following
        return results

    def run_in_halves(
        self, residents: Sequence[Tensor], settings: Sequence[float]
    ) -> Generator[tuple[Tensor, ...], Sequence[Tensor | None], tuple[Tensor, ...]]:
        """Run an iteration that is part of a larger graph: yield outputs, and go on with their cotangents."""
        self._end_abandoned()
        code, given, following = self._prepared(residents)
        del residents
        tickets, deletes = (self._now, self._last), (self._leaving, self._left)
        running: Any = code(given, settings, self.held, *tickets, *deletes)
        del given
        outputs = next(running)
        self._suspended = True
        try:
            cotangents = yield outputs
        except GeneratorExit:
            # Jobs may still copy what the code holds, and this may be any thread: the next use ends it.
            self._abandoned = running
            raise
        finally:
            self._suspended = False
        del outputs
        try:
            running.send(cotangents)
        except StopIteration as end:
            self._state = following
            return end.value
        raise AssertionError("an internal error: a schedule hands over twice")

    def _prepared(self, residents: Sequence[Tensor]) -> tuple[_Code, list[Tensor], str]:
        """Begin an iteration, and return its code, the residents it takes, and the state it leaves."""
        for storage, copy in list(self._salvaged.items()):
            self._put(storage, self._fetched(copy))
            del self._salvaged[storage]
        # Jobs of the iteration before last: no more than two iterations are ever under way.
        for ticket in self._last.values():
            ticket.wait()
        code, needed = self._code()
        following = self._iterations[self._state].state
        self._now, self._last = {}, self._now
        self._leaving, self._left = {}, self._leaving
        by_value = dict(zip(self.program.residents, residents, strict=True))
        return code, [by_value[value] for value in needed], following

    def _end_abandoned(self) -> None:
        """End an iteration whose second half nobody will run, with a good copy of each moved storage."""
        running, self._abandoned = self._abandoned, None
        if running is not None:
            self.end_jobs()
            running.close()
            self.salvage()

    def pending(self) -> list[tuple[Any, ...]]:
        """Return the copies that are deleted but whose memory is not free yet."""
        return [*self._leaving.values(), *self._left.values()]

    def end_jobs(self) -> None:
        """Wait until all that was given to the queues and the device has ended, whether or not it failed."""
        self.queues.drain()
        self.device.synchronize()

    def salvage(self) -> set[int]:
        """End all jobs after a failure, and keep one good copy of each moved storage, in whichever memory.

        Returns the storages that are left in between: those overwritten that nobody has kept.
        """
        self.end_jobs()
        kept = self.journal.kept
        bad, sources = self._failures()
        # In order of trust: what the journal kept is from before the iteration, a copy under way may be of
        # either side of an update, and sources of failed jobs are the last resort.
        found: dict[int, Any] = {x: copy for x, copy in kept.items() if x in self._placed}
        for place, copy in ((place, self.held.get(variable(*place))) for place in self._all_places()):
            if copy is not None and id(copy) not in bad:
                found.setdefault(place[1], copy)
        for x, copy in sources:
            if x in self._placed and id(copy) not in bad:
                found.setdefault(x, raw(copy) if isinstance(copy, Tensor) else copy)
        self._salvaged = {**self._salvaged, **found}
        overwritten = self.journal.overwritten & self.moved
        self.lost |= (overwritten | (self._placed - self._salvaged.keys())) - kept.keys()
        self.held.clear()
        self._begin()
        return self.lost

    def _failures(self) -> tuple[set[int], list[tuple[int, Any]]]:
        """Find the copies that failed jobs have left unfilled.

        Returns the copies that were not filled, by identity; and what they should have been filled from, with
        its storage, the latest first.

        Collectives are of shares, which stay, and of full tensors that are gathered anew.

        A job whose source is bad has not begun: a target that was good before, as it was a source, still is.
        """
        bad: set[int] = set()
        good: set[int] = set()
        sources: list[tuple[int, Any]] = []
        for tickets in (self._last, self._now):
            for step, ticket in tickets.items():
                if ticket.error() is None:
                    continue
                target = self.schedule.targets.item(step)
                if self.schedule.verbs.item(step) == Verb.COMPUTE:
                    changes = self.program.operations[target].mutates
                    # What is kept of the iteration before is no more: the journal is this one's.
                    kept = tickets is self._now
                    self.lost.update(x for x in changes if not (kept and self.journal.keeps(x)))
                elif ticket.left and target not in self.graph.tensors.spread:
                    source, unfilled = ticket.left
                    if begun := id(source) not in bad:
                        good.add(id(source))
                        sources.insert(0, (target, source))
                    if begun or id(unfilled) not in good:
                        bad.add(id(unfilled))
        return bad, sources

    def _all_places(self) -> Sequence[Place]:
        """Return where copies may be. Shares of spread tensors, which stay, are the module's parameters."""
        own = self.moved - self.graph.tensors.spread
        return [(memory, x) for x in own for memory in LETTERS]

    def _copies(self, storage: int) -> list[Tensor | HostBuffer | File]:
        self.settle()
        if storage in self._salvaged:
            return [self._salvaged[storage]]
        copies = (self.held.get(variable(memory, storage)) for memory in LETTERS)
        return [copy for copy in copies if copy is not None]

    def _put(self, storage: int, on_device: Tensor) -> None:
        self._placed_at(storage, partial(self._copy, storage=storage, bytes_=on_device))

    def _placed_at(self, storage: int, copy: Callable[[int], Tensor | HostBuffer | File]) -> None:
        self.held.update({variable(memory, storage): copy(memory) for memory in self._homes[storage]})
        self._placed.add(storage)
        self.lost.discard(storage)

    def settle(self) -> None:
        """Wait until all jobs have ended; the next iteration is a first one."""
        if self._suspended:
            raise MemplanError(BETWEEN)
        self._end_abandoned()
        errors = (ticket.error() for ticket in (*self._last.values(), *self._now.values()))
        if (error := next(filter(None, errors), None)) is not None:
            self.salvage()
        if self.lost:
            self.when_lost()
            raise MemplanError(self.lost_line) from error
        self._begin()

    def _begin(self) -> None:
        self._now: dict[int, Ticket] = {}
        self._last: dict[int, Ticket] = {}
        self._leaving: dict[int, tuple[Any, ...]] = {}
        self._left: dict[int, tuple[Any, ...]] = {}
        self._state = ""

    def _code(self) -> tuple[_Code, tuple[int, ...]]:
        """Return the code of the next iteration, and the residents that it takes."""
        if self._state not in self._iterations:
            self._iterations[self._state] = self._rehearsal.rehearse()
        watch = self.stopwatch
        if (self._state, watch) not in self._codes:
            iteration, timed = self._iterations[self._state], watch is not None
            code = generate_iteration(
                self.program,
                self.graph,
                schedule=self.schedule,
                iteration=iteration,
                carried=self.places,
                device=self.device,
                timed=timed,
                addresses=self.addresses,
                placement=self._rooms and self._rooms.placement,
            )
            tools: dict[str, Any] = {
                "add": self.queues.add,
                "keep": self.journal.keep,
                "keep_later": self.journal.keep_later,
                "wait": self.queues.wait,
                "memory": self.host,
                "host": self.host.block,
                "file": self.disk and self.disk.file,
                "room": self.device.room,
                "expect": self._rooms and self._rooms.expect,
                "offload": partial(offload, self.device),
                "prefetch": partial(prefetch, self.device),
                "read": read,
                "write": write,
            }
            if (shards := self._shards) is not None:
                tools |= {"gather": shards.gather, "scatter": shards.scatter, "share": shards.share}
                tools["clip_over_ranks"] = partial(clip_over_ranks, self._add_up)
            if watch is not None:
                tools |= watch.around(tools)
            self._codes[self._state, watch] = (code.compile(**tools), code.residents)
            self.sources.append(code.source)
        return self._codes[self._state, watch]

    def _add_up(self, numbers: Tensor) -> None:
        """Add numbers up over the ranks, after all collectives before it in the schedule."""
        assert self._shards is not None
        self.queues.wait(self.queues.add(Queue.COMM, self._shards.add_up, (numbers,), (), ()))

    def _copy(self, memory: int, storage: int, bytes_: Tensor) -> Tensor | HostBuffer | File:
        if memory == Memory.DEVICE:
            return self._on_device(storage, bytes_)
        block = self._block(memory, storage, bytes_.nbytes)
        offload(self.device, bytes_, block)
        self.device.synchronize()
        return self._home(memory, block)

    def _filled(self, memory: int, storage: int, size: int, fill: Fill) -> Tensor | HostBuffer | File:
        """Fill host memory and copy it to its memory: the device's may have had users that have not ended."""
        block = self._block(memory, storage, size).open()
        fill(block.bytes)
        if memory == Memory.DEVICE:
            return self._on_device(storage, self._fetched(block))
        return self._home(memory, block)

    def _on_device(self, storage: int, bytes_: Tensor) -> Tensor:
        return bytes_ if self._rooms is None else self._rooms.home(storage, bytes_)

    def _block(self, memory: int, storage: int, size: int) -> HostBuffer:
        if memory != Memory.HOST:
            return Host().block(size)
        offset = None if self.addresses is None else self.addresses.initial(storage)
        return self.host.block(size, offset, int(self.graph.tensors.bytes[storage]))

    def _home(self, memory: int, block: HostBuffer) -> HostBuffer | File:
        if memory == Memory.HOST or self.disk is None:
            return block
        file = self.disk.file(block.size)
        write(block, file)
        return file

    def _fetched(self, copy: Tensor | HostBuffer | File) -> Tensor:
        """Return the copy on the device, for what is queued on the current stream from now on."""
        if isinstance(copy, Tensor):
            return copy
        block = Host().block(copy.size) if isinstance(copy, File) else copy
        if isinstance(copy, File):
            read(copy, block)
        made = self.device.room(block.bytes.nbytes)
        prefetch(self.device, block, made)
        return made


def _by_memory(copies: Sequence[Tensor | HostBuffer | File]) -> dict[int, Tensor | HostBuffer]:
    """Return the copies by memory, without those on the disk."""
    return {
        Memory.HOST if isinstance(copy, HostBuffer) else Memory.DEVICE: copy
        for copy in copies
        if not isinstance(copy, File)
    }


def _check_memories(schedule: Schedule, machine: Machine) -> None:
    """Raise MemplanError if a schedule uses a memory that the runtime does not have."""
    if schedule.memories > len(LETTERS):
        names = machine.hierarchy.with_length(schedule.memories).names
        raise MemplanError(
            f"running a schedule that uses the memory {names[len(LETTERS)]!r} is not supported: copies go to "
            f"the host and to one memory below it. Solve for a machine file without {names[len(LETTERS)]!r}"
        )


def _places(graph: Graph, schedule: Schedule, program: Program) -> Sequence[Place]:
    """Return the memories of the persistent storages that the schedule moves, at the start of an
    iteration.

    Blocks of one state are all among them or none: the user has one tensor. Buckets are always among them: a
    plan of the other batches of an update, which may move other tensors, takes them over as they are.
    """
    initial = schedule.initial
    transfers = (schedule.targets[schedule.verbs != Verb.COMPUTE]).tolist()
    moved = {x for x in transfers if graph.persistent[x]} | initial.named | buckets_of(program)
    for whole in whole_states(program).values():
        blocks = {program.values[value].storage for value in whole.blocks}
        moved |= set() if moved.isdisjoint(blocks) else blocks
    return [(memory, x) for x in sorted(moved) for memory in initial.memories(x)]
