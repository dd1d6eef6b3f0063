"""The memory pass: one pass over the steps in order that checks every rule and counts every byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ...graphs.graph import Graph, Kind, Phase
from ...graphs.machine import Machine, Memory
from ..errors import InvalidScheduleError
from ..schedule.schedule import DEFAULT_MODE, Schedule, Verb
from .admission import AdmissionRules
from .clock import Queue, Waits, link_of, queue_name, queue_of, source_of, transfer_queue
from .collectives import joined_steps
from .copies import Copies, Copy
from .footprint import Footprint
from .ledger import Ledger
from .pinned import PINNED, START, pinned_copies

# Looking up a member of an Enum takes as long as half a step.
_COMPUTE, _DELETE = int(Verb.COMPUTE), int(Verb.DELETE)
_DEVICE, _HOST, _PEERS = int(Memory.DEVICE), int(Memory.HOST), int(Memory.PEERS)
_COMPUTE_QUEUE, _CPU_QUEUE, _COMM = int(Queue.COMPUTE), int(Queue.CPU), int(Queue.COMM)


class Walk:
    """The memory pass over a schedule.

    After each `run_iteration`: `queues`, `seconds`, `launches` and `waits` per step for the clock, `curve`
    (device bytes while each step runs), `workspaces` (of these, bytes for the step alone, by step), `ledgers`
    with the peaks so far.

    on_peers: per update, what it uses on the peers. joined: from `joined_steps`; such a step takes no seconds
    and waits for nothing: its collective does.
    """

    def __init__(
        self, graph: Graph, schedule: Schedule, *, budget: int | None, machine: Machine | None
    ) -> None:
        self.graph, self.schedule = graph, schedule
        machine = machine or Machine()
        # A schedule made for a longer row is refused by its steps, so the row has a place for each of them.
        self.hierarchy = machine.hierarchy.with_length(schedule.memories)
        self.names = self.hierarchy.names
        limits = [tier.capacity for tier in self.hierarchy.tiers]
        limits[_DEVICE] = min((x for x in (limits[_DEVICE], budget) if x is not None), default=None)
        self.ledgers = [Ledger(limit) for limit in (*limits, machine.crossing_capacity)]
        self._unpinned = machine.unpinned
        self._pinned_copies = (
            frozenset[tuple[int, int]]() if self._unpinned else pinned_copies(graph, schedule)
        )
        self.pinned: set[int] = set()

        self.footprint = Footprint(graph, self.hierarchy)
        self.joined = joined_steps(graph, schedule, self.hierarchy.peers)
        self.sizes = self.footprint.sizes
        self.on_peers = {
            operation: graph.on_peers(operation)
            for operation in ((graph.operations.phase == Phase.UPDATE).nonzero()[0].tolist())
            if graph.tensors.spread
        }
        self.persistent: list[bool] = graph.persistent.tolist()
        self.resident: list[bool] = graph.resident.tolist()
        self._input: list[bool] = (graph.tensors.kind == Kind.INPUT).tolist()
        self.guards = AdmissionRules(graph)

        self.copies = Copies(graph.whole_contributions, len(self.hierarchy))
        self.step = -1
        self._place_residents()

    def run_iteration(self) -> object:
        """Walk one iteration; what it leaves for the next to wait for (falsy if nothing)."""
        self.queues: list[int] = []
        self.seconds: list[float] = []
        self.launches: list[float] = []
        self.waits: Waits = {}
        self.curve: list[int] = []
        self.workspaces: dict[int, int] = {}
        self.guards.restart()
        self._pass_fence()
        device = self.ledgers[_DEVICE]
        schedule = self.schedule
        for step, (verb, target, where) in enumerate(schedule.rows()):
            self.step = step
            if verb == _COMPUTE:
                self._compute(target, where)
            elif verb == _DELETE:
                self._delete(target, where)
                self._put(-1, 0.0, 0.0)
                self.curve.append(device.used)
            else:
                self._transfer(target, transfer_queue(verb, where), where)
        self._end_of_iteration()
        return self._left_over()

    def _pass_fence(self) -> None:
        """Pass the fence: an iteration starts when the transfers of the one before the last have ended
        (clock.py)."""
        last = -len(self.schedule)
        self.copies.land_before(last)
        for ledger in self.ledgers:
            ledger.settle_before(last)

    # ── computations ────────────────────────────────────────────────────────────────────────────

    def _compute(self, operation: int, mode_index: int) -> None:
        graph = self.graph
        columns = graph.operations
        reads = graph.read_lists[operation]
        mutates = graph.mutate_lists[operation]
        memory = _DEVICE
        queue = _COMPUTE_QUEUE
        reads_host, writes_host = (), ()
        if mode_index == DEFAULT_MODE:
            seconds, transient = columns.time.item(operation), columns.workspace.item(operation)
            launch = columns.launch.item(operation)
            made = graph.contributions(operation)
            if operation in columns.comm:
                queue = _COMM
        else:
            modes = columns.modes.get(operation, ())
            if not 0 < mode_index <= len(modes):
                self._refuse("unknown-mode", f"the operation has no mode number {mode_index}")
            mode = modes[mode_index - 1]
            seconds, transient = mode.time, mode.workspace
            reads_host, writes_host = mode.reads_host, mode.writes_host
            launch, made = mode.launch, graph.contributions(operation, mode_index)
            if mode.on_host:
                memory, queue = _HOST, _CPU_QUEUE

        fault = self.guards.enter(operation)
        if fault is not None:
            rule, why, tensor = fault
            self._refuse(rule, why, tensor)

        copies, on_peers = self.copies, self.on_peers.get(operation, ())
        have, whole = copies.have[memory], copies.whole
        # While no transfer or collective has made any copy, bits alone say what may be read: most graphs stay
        # on this short way.
        shared = copies.stale or copies.made or queue == _COMM
        waits: list[int] = []
        operands = tuple[int, ...]()
        for x in reads + mutates if mutates else reads:
            if x in reads_host:
                if self._unpinned:
                    self._refuse("capacity", "the device reads {} on the host, where nothing is pinned", x)
                self._read((_HOST, x), queue, waits)
            elif x in on_peers:
                self._read((_PEERS, x), queue, waits)
            elif shared or have[x] != whole[x]:
                self._read((memory, x), queue, waits)

        for x in mutates:
            # A change in place waits for those that still read the old value, or write it.
            copies.await_users((_PEERS if x in on_peers else memory, x), queue, waits)
        kept = pinned = 0
        if writes_host:
            self._write_host([(x, bit) for x, bit in made if x in writes_host], waits)
            made = [(x, bit) for x, bit in made if x not in writes_host]
        for x, bit in made:
            present = have[x]
            if not present:
                kept += self.sizes[x]
                pinned += self._pin(x, self.step, memory)
            # This contribution is there already: it is recomputed, into memory that lives while it
            # runs.
            elif present & bit:
                transient += self.sizes[x]
        if queue == _COMM:
            operands = (*reads, *(x for x, _bit in made if not have[x]))
            # A collective runs alongside later computations: its workspace is freed when it has ended
            # (`_leave_workspace`), not with the step.
            self._allocate(memory, kept + transient, 0, waits, queue)
        else:
            self._allocate(memory, kept, transient, waits, queue)
        if pinned:
            self._allocate(PINNED, pinned, 0, waits)
        for x, bit in made:
            if shared or queue == _CPU_QUEUE:
                copies.contribute((memory, x), bit, queue, self.step, waits)
            else:
                # No other queue has made a copy yet: nothing to wait for, nothing to note.
                have[x] |= bit
        for x in mutates:
            copies.change_in_place((_PEERS if x in on_peers else memory, x), queue, self.step)
        self._enqueue(queue, seconds, waits, launch)
        device = self.ledgers[_DEVICE]
        if queue == _COMM:
            copies.begin_collective(operands, self.step)
            self._leave_workspace(transient)
            transient = 0
        if transient and memory == _DEVICE:
            self.workspaces[self.step] = transient
            self.curve.append(device.used + transient)
        else:
            self.curve.append(device.used)

    def _leave_workspace(self, size: int) -> None:
        """Free what a collective holds for itself, once it has ended."""
        if size:
            self.ledgers[_DEVICE].free(size, (self.step,))

    def _write_host(self, made: Sequence[tuple[int, int]], waits: list[int]) -> None:
        """Let the device write contributions in host memory, which is pinned; no link's queue is used."""
        kept = transient = 0
        for x, bit in made:
            if self._unpinned:
                self._refuse("capacity", "the device writes {} on the host, where nothing is pinned", x)
            present = self.copies.have[_HOST][x]
            if not present:
                kept += self.sizes[x]
                self._pin(x, self.step, _HOST)
            elif present & bit:
                transient += self.sizes[x]
        for ledger in (_HOST, PINNED):
            self._allocate(ledger, kept, transient, waits)
        for x, bit in made:
            self.copies.contribute((_HOST, x), bit, _COMPUTE_QUEUE, self.step, waits)

    def _read(self, copy: Copy, queue: int, waits: list[int]) -> None:
        """Check that a copy may be read, and wait for what made it."""
        memory, x = copy
        present = self.copies.have[memory][x]
        if not present:
            self._refuse("reads-present", f"{{}} is not on the {self._name(copy)}", x)
        if present != self.copies.whole[x]:
            self._refuse("reads-complete", f"{{}} on the {self._name(copy)} lacks contributions", x)
        if copy in self.copies.stale:
            self._refuse("reads-fresh", f"{{}} on the {self._name(copy)} is stale", x)
        self.copies.await_producers(copy, queue, waits)

    # ── deletes and transfers ───────────────────────────────────────────────────────────────────

    def _delete(self, x: int, memory: int) -> None:
        if self._input[x]:
            self._refuse("delete-input", "{} is an input", x)
        if not self.copies.have[memory][x]:
            self._refuse("delete-present", f"{{}} is not on the {self._name((memory, x))}", x)
        if memory == _PEERS and self.persistent[x] and self.footprint.spread[x]:
            self._refuse("peers", "{} lies on the peers for ever", x)
        if self.persistent[x] and self.copies.readable((memory, x)):
            # A persistent tensor outlives the iteration: some copy must stay readable.
            others = (m for m in self.copies.memories(x) if m != memory)
            if not any(self.copies.readable((other, x)) for other in others):
                self._refuse(
                    "delete-last-copy", f"{{}} has its last fresh copy on the {self._name((memory, x))}", x
                )
        self._drop((memory, x))

    def _drop(self, copy: Copy) -> None:
        memory, x = copy
        transfers = self.copies.drop(copy)
        ledger, size = self.footprint.of(x, memory)
        self.ledgers[ledger].free(size, transfers)
        if memory == _HOST and x in self.pinned:
            self.pinned.remove(x)
            self.ledgers[PINNED].free(self.sizes[x], transfers)

    def _transfer(self, x: int, queue: int, target: int) -> None:
        spread = self.footprint.spread[x]
        if spread:
            self._require_direction(x, queue)
        shown = queue_of(queue, spread)
        link = link_of(self.hierarchy, queue, spread=spread)
        if link is None:
            self._refuse("transfer-link", f"the machine has no link {queue_name(self.names, shown)}", x)
        if target and x in self.graph.tensors.stays:
            self._refuse("transfer-link", "{} may not leave the device", x)
        source = (source_of(queue), x)
        if not self.copies.readable(source):
            present = self.copies.have[source[0]][x]
            state = "not there" if not present else "stale" if source in self.copies.stale else "incomplete"
            self._refuse("transfer-source", f"{{}} on the {self._name(source)} is {state}", x)
        waits: list[int] = []
        self.copies.await_producers(source, queue, waits)
        if self.copies.have[target][x]:
            self.copies.await_users((target, x), queue, waits)
        else:
            self._allocate(*self.footprint.of(x, target), 0, waits, queue)
            if pinned := self._pin(x, self.step, target):
                self._allocate(PINNED, pinned, 0, waits)
        self.copies.transfer(x, queue, target, self.step)
        seconds = float(link.seconds(float(self.sizes[x])))
        if (first := self.joined.get(self.step)) is not None:
            self.waits[first] = (*self.waits.get(first, ()), *waits)
            # Joined to the collective that the step `first` began: one latency for all, and its waits are
            # theirs.
            self.seconds[first] += seconds - link.latency
            seconds, waits = 0.0, []
        self._enqueue(shown, seconds, waits)
        self.curve.append(self.ledgers[_DEVICE].used)

    def _require_direction(self, x: int, queue: int) -> None:
        """Refuse a transfer of a spread tensor in which ranks would lose what they have."""
        if queue not in (Queue.D2H, Queue.H2D):
            self._refuse("peers", "{} is spread over the ranks: it is on the device or on the peers", x)
        elif self.persistent[x] and queue == Queue.D2H:
            self._refuse("peers", "{} lies on the peers for ever: it can be gathered alone", x)
        elif not self.persistent[x] and queue == Queue.H2D:
            self._refuse("peers", "{} on the peers is a sum over the ranks: it can be scattered alone", x)

    def _name(self, copy: Copy) -> str:
        """Return the word for the memory of a copy."""
        memory, x = copy
        return "peers" if memory == _PEERS and self.footprint.spread[x] else self.names[memory]

    # ── bookkeeping ─────────────────────────────────────────────────────────────────────────────

    def _enqueue(self, queue: int, seconds: float, waits: list[int], launch: float = 0.0) -> None:
        if waits:
            self.waits[self.step] = tuple(waits)
        self._put(queue, seconds, launch)

    def _put(self, queue: int, seconds: float, launch: float) -> None:
        self.queues.append(queue)
        self.seconds.append(seconds)
        self.launches.append(launch)

    def _pin(self, x: int, step: int, memory: int) -> int:
        """Return the bytes of pinned memory that a copy which begins now takes."""
        if memory != _HOST or (step, x) not in self._pinned_copies:
            return 0
        self.pinned.add(x)
        return self.sizes[x]

    def _allocate(
        self, ledger_of: int, kept: int, transient: int, waits: list[int], queue: int = _COMPUTE_QUEUE
    ) -> None:
        """Allocate bytes for a step, and add the transfers that it must wait for to `waits`.

        ledger_of: a memory, or PINNED. kept: bytes that stay. transient: bytes for the running step alone.
        queue: of the step.
        Raises InvalidScheduleError if they do not fit.
        """
        ledger = self.ledgers[ledger_of]
        if not ledger.fits(kept + transient):
            where = "pinned host memory" if ledger_of == PINNED else self.names[ledger_of]
            self._refuse(
                "capacity",
                f"the {where} would hold {ledger.settled + kept + transient:,} bytes, "
                f"{ledger.limit:,} are allowed",
            )
        for transfer in ledger.claim(kept, transient):
            waits.append(transfer)
            # Steps are counted from this iteration's start; below 0 they are of one before.
            x = self.schedule.targets.item(transfer % len(self.schedule))
            self.copies.land(x, self._queue_of(transfer), transfer, queue)

    def _queue_of(self, transfer: int) -> int:
        index = transfer % len(self.schedule)
        if self.schedule.verbs.item(index) == _COMPUTE:
            return _COMM
        return transfer_queue(self.schedule.verbs.item(index), self.schedule.wheres.item(index))

    def _place_residents(self) -> None:
        names, initial = self.graph.tensors.name, self.schedule.initial
        places: dict[int, tuple[int, ...]] = {x: (_DEVICE,) for x, there in enumerate(self.resident) if there}
        named = set[int]()
        for memories, tensors in initial.groups:
            for x in sorted(tensors):
                if not self.persistent[x]:
                    self._refuse_whole("initial", f"{names[x]} is not persistent", x)
                if x in named:
                    self._refuse_whole("initial", f"{names[x]} is named twice", x)
                if x in self.graph.tensors.stays and memories != (_DEVICE,):
                    self._refuse_whole("initial", f"{names[x]} may not leave the device", x)
                named.add(x)
                places[x] = memories
        for x in sorted(self.graph.tensors.spread):
            if self.persistent[x] and places[x] not in ((Memory.PEERS,), (Memory.DEVICE, Memory.PEERS)):
                self._refuse_whole(
                    "initial", f"{names[x]} is spread over the ranks: it starts on the peers", x
                )
        self.places = places
        for x, memories in places.items():
            for memory in memories:
                self.copies.have[memory][x] = self.copies.whole[x]
                ledger, size = self.footprint.of(x, memory)
                if not self.ledgers[ledger].fits(size):
                    self._refuse_whole(
                        "capacity",
                        f"the {self.names[ledger]} is too small for what lies there at first",
                        x,
                    )
                self.ledgers[ledger].claim(size, 0)
                pinned = self._pin(x, START, memory)
                if not self.ledgers[PINNED].fits(pinned):
                    self._refuse_whole(
                        "capacity",
                        "the pinned host memory is too small for what lies there at first",
                        x,
                    )
                self.ledgers[PINNED].claim(pinned, 0)

    def _end_of_iteration(self) -> None:
        """Check what must be there; the rest vanishes."""
        names = self.graph.tensors.name
        forgotten = self.guards.never_ran()
        if forgotten is not None:
            name = self.graph.operations.name[forgotten]
            self._refuse_whole("runs-all", f"operation {name} never runs")
        for x in self.graph.results:
            if not any(self.copies.readable((memory, x)) for memory in self.copies.memories(x)):
                self._refuse_whole("results", f"{names[x]} is not there at the end", x)
        for x, there in enumerate(self.resident):
            memories = self.copies.memories(x)
            if self.persistent[x] and (
                memories != list(self.places[x])
                or any((memory, x) in self.copies.stale for memory in memories)
            ):
                self._refuse_whole("persistent-return", f"{names[x]} does not end, fresh, where it began", x)
            for memory in memories:
                # What the iteration made vanishes; an input comes anew, on the device, in the next one.
                if not there or (not self.persistent[x] and memory != _DEVICE):
                    self._drop((memory, x))
                elif not self.persistent[x]:
                    self.copies.stale.discard((memory, x))

    def _left_over(self) -> object:
        """Return what the next iteration waits for, counted from its start: a snapshot, None if nothing."""
        steps = len(self.schedule)
        users = self.copies.next_iteration(steps)
        pending = [ledger.next_iteration(steps) for ledger in self.ledgers]
        return (users, pending) if any(users) or any(pending) else None

    def _refuse(self, rule: str, fault: str, x: int | None = None) -> NoReturn:
        schedule, names = self.schedule, self.graph.tensors.name
        verb, target = Verb(schedule.verbs.item(self.step)), schedule.targets.item(self.step)
        of = self.graph.operations.name if verb == _COMPUTE else names
        tensor = None if x is None else names[x]
        raise InvalidScheduleError(
            rule,
            fault.format(tensor),
            step=self.step,
            what=f"{verb.word} {of[target]}",
            tensor=tensor,
        )

    def _refuse_whole(self, rule: str, fault: str, x: int | None = None) -> NoReturn:
        tensor = None if x is None else self.graph.tensors.name[x]
        raise InvalidScheduleError(rule, fault, step=None, tensor=tensor)
