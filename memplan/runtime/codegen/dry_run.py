"""A dry run of one iteration of a schedule by the simulator: what each step waits for, and when pending
deletes end.

So the runtime holds and frees memory in the order in which it was counted. The rules speak of memory and time
alone; the runtime needs more, for the bytes to be right:

- a copy that is written while it is there (refreshed by a transfer, changed in place) waits for the
  transfers and CPU computations that still read or write it;
- a copy on the device that is deleted though only another queue has waited for its transfers: the computing
  queue waits for them too, since it is in its order that the memory is free;
- a pinned copy waits for all that has used its addresses before;
- what has an address on the device ends the pending deletes of what is still there: mostly its own copy of
  the iteration before, if no allocation needed that memory;
- memory that a CPU computation still uses, though its delete has passed, and the workspace of one that may
  not have run yet, are waited for by the next allocation on the host. One that waits is made in its queue's
  thread, so that the computing goes on, and the next waits for it: host memory follows the list's order too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...graphs.graph import Graph
from ...graphs.machine import MOST_MEMORIES, Machine, Memory
from ...planner.addresses.layout import Layout
from ...planner.addresses.lifetimes import WORKSPACE
from ...planner.schedule.schedule import DEFAULT_MODE, Schedule
from ...planner.simulator.clock import Queue, source_of
from ...planner.simulator.copies import Copy
from ...planner.simulator.pinned import PINNED, START
from ...planner.simulator.walk import Walk

FENCE = -1
"""The place before the first step."""

Leave = tuple[int, int]
"""A pending delete: how many iterations ago, and its key in that iteration: its step, or `key_at_end`; or
what a collective holds for itself, and its step."""


def key_at_end(steps: int, x: int, memory: int) -> int:
    """Return the key of a copy that vanishes at the end of a list of so many steps."""
    return steps + MOST_MEMORIES * x + memory


def copy_of_key(steps: int, key: int) -> tuple[int, int]:
    """Return the memory and the tensor that `key_at_end` was made of."""
    x, memory = divmod(key - steps, MOST_MEMORIES)
    return memory, x


class Ends(NamedTuple):
    """Pending deletes that end, and the transfers that they wait for."""

    deletes: list[Leave]
    transfers: list[int]


class IterationCode(NamedTuple):
    """Waits and pending deletes of one iteration.

    Steps are numbered from this iteration's first; below 0 they are the previous iteration's.

    waits: per step, the steps that it waits for.
    ends: per step, what ends before it.
    pending: keys of this iteration's deletes.
    late: steps whose allocation on the host waits.
    results: per tensor the memory that it is in at the end, and the steps that made it.
    joined: steps that are part of the collective of the step before them.
    state: what the iteration leaves, as a key: iterations that start with equal states are equal.
    """

    waits: Mapping[int, Sequence[int]]
    ends: Mapping[int, Ends]
    pending: frozenset[int]
    late: frozenset[int]
    results: Mapping[int, tuple[int, Sequence[int]]]
    joined: Collection[int]
    state: str


class _Former(NamedTuple):
    """Addresses of a copy that was, and the steps that used it."""

    start: int
    end: int
    users: tuple[int, ...]


class DryRun(Walk):
    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        *,
        budget: int | None = None,
        machine: Machine | None = None,
        addresses: Layout | None = None,
        layout: Layout | None = None,
    ) -> None:
        """Simulate one iteration.

        addresses: of pinned host copies, None if they have none.
        layout: of the device's memory, None if it is not planned.
        """
        self._addresses, self._layout = addresses, layout
        self._lies: dict[int, tuple[int, int]] = {}
        self._left: dict[tuple[int, int], tuple[int, int]] = {}
        self._former: list[_Former] = []
        self._offsets: dict[int, int] = {}
        self._number = -1
        self._users: dict[Copy, dict[int, int]] = {}
        self._gate: int | None = None  # the step that the next allocation on the host waits for
        self._leaving: list[deque[tuple[int, int]]] = [deque() for _ in range(MOST_MEMORIES)]
        self._ends: dict[int, Ends] = {}
        self._late: set[int] = set()
        self._more: dict[int, set[int]] = {}
        self._results: dict[int, tuple[int, Sequence[int]]] = {}
        super().__init__(graph, schedule, budget=budget, machine=machine)
        if layout is not None:
            self._lies.update(layout.initial_places)

    def rehearse(self) -> IterationCode:
        """Simulate the next iteration and return it. Raises InvalidScheduleError."""
        self._number += 1
        self._ends, self._late, self._more, self._results = {}, set(), {}, {}
        left = self.run_iteration()
        waits = {
            step: sorted({*self.waits.get(step, ()), *self._more.get(step, ())})
            for step in {*self.waits, *self._more}
        }
        pending = frozenset(
            key for deletes in self._leaving for number, key in deletes if number == self._number
        ) | {key for ends in self._ends.values() for ago, key in ends.deletes if ago == 0}
        self._next_iteration()
        # Two iterations that begin with all of this equal have the same code, so few codes serve all.
        state = repr((left, self._users, self._gate, self._relative_leaving(), self._former))
        return IterationCode(
            waits=waits,
            ends=self._ends,
            pending=pending,
            late=frozenset(self._late),
            results=self._results,
            joined=self.joined.keys(),
            state=state,
        )

    # ── pending deletes ─────────────────────────────────────────────────────────────────────────────

    def _pass_fence(self) -> None:
        self.step, last = FENCE, -len(self.schedule)
        for memory in range(len(self.hierarchy)):
            ledger = self.ledgers[memory]
            left: deque[tuple[int, int]] = deque()
            for delete, (_size, transfers) in zip(self._leaving[memory], ledger.pending, strict=True):
                if max(transfers) >= last:  # of this iteration or the last: older ones have ended
                    left.append(delete)
                else:
                    self._end(delete)
            self._leaving[memory] = left
        super()._pass_fence()

    def _drop(self, copy: Copy) -> None:
        memory, x = copy
        ledger, _size = self.footprint.of(x, memory)  # a share on the peers lies on the device
        pending = self.ledgers[ledger].pending
        before = len(pending)
        pinned = memory == Memory.HOST and x in self.pinned
        super()._drop(copy)
        at_end = len(self.queues) == len(self.schedule)
        if len(pending) > before:
            key = key_at_end(len(self.schedule), x, memory) if at_end else self.step
            self._leaving[ledger].append((self._number, key))
            if memory == Memory.DEVICE and (place := self._lies.get(x)) is not None:
                self._left[self._number, key] = place
        users = self._users.pop(copy, {})
        if pinned and (offset := self._offsets.pop(x, None)) is not None and users:
            self._former.append(_Former(offset, offset + self.sizes[x], tuple(users.values())))
        if ledger == Memory.DEVICE and len(pending) == before:
            # Nothing is pending: some queue has waited, but maybe not the computing one.
            place = len(self.schedule) if at_end else self.step
            self._more.setdefault(place, set()).update(users.values())
        if memory == Memory.HOST and Queue.CPU in users:
            self._gate = max(users[Queue.CPU], self._gate or users[Queue.CPU])

    def _pin(self, x: int, step: int, memory: int) -> int:
        size = super()._pin(x, step, memory)
        if not size or self._addresses is None:
            return size
        offset = self._addresses.initial(x) if step == START else self._addresses.at(x, step)
        if offset is not None:
            self._offsets[x] = offset
            end, still = offset + size, list[_Former]()
            for former in self._former:
                if former.start < end and offset < former.end:  # half-open ranges that overlap
                    self._more.setdefault(self.step, set()).update(former.users)
                # What comes after this copy waits for it, and so for those whose range it covers.
                if not (offset <= former.start and former.end <= end):
                    still.append(former)
            self._former = still
        return size

    def _leave_workspace(self, size: int) -> None:
        super()._leave_workspace(size)
        if size:
            self._leaving[Memory.DEVICE].append((self._number, self.step))

    def _allocate(
        self, ledger_of: int, kept: int, transient: int, waits: list[int], queue: int = int(Queue.COMPUTE)
    ) -> None:
        pending = self.ledgers[ledger_of].pending
        before, earlier_waits = len(pending), len(waits)
        super()._allocate(ledger_of, kept, transient, waits, queue)
        if ledger_of == PINNED:  # the copies are the host's too, and let go of there
            return
        memory = ledger_of
        ended = before - len(pending)
        for _ in range(ended):
            self._end(self._leaving[memory].popleft())
        if ended:
            self._ends[self.step].transfers.extend(waits[earlier_waits:])
        if memory == Memory.HOST and (ended or (kept and self._gate is not None)):
            self._late.add(self.step)
            if self._gate is not None:
                self._wait(self._gate)
            self._gate = self.step

    def _end(self, delete: tuple[int, int]) -> None:
        number, key = delete
        ends = self._ends.setdefault(self.step, Ends([], []))
        ends.deletes.append((self._number - number, key))

    def _lay(self, x: int) -> None:
        """End the pending deletes whose address range overlaps that of the copy or workspace that this step
        allocates.

        A delete stays pending until the compute queue has waited for its transfers. Until then its bytes are
        still read or written, so the new allocation may not share addresses with them.
        """
        if self._layout is None or (place := self._layout.place(x, self.step)) is None:
            return
        ledger, leaving = self.ledgers[Memory.DEVICE], self._leaving[Memory.DEVICE]
        for entry, delete in list(zip(ledger.pending, leaving, strict=True)):
            lies = self._left.get(delete)
            if lies is not None and lies[0] < place[1] and place[0] < lies[1]:
                size, transfers = entry
                ledger.pending.remove(entry)
                ledger.used -= size
                leaving.remove(delete)
                self._end(delete)
                self._ends[self.step].transfers.extend(transfers)
                self._more.setdefault(self.step, set()).update(transfers)
        self._lies[x] = place

    # ── writing what is there ───────────────────────────────────────────────────────────────────────

    def _transfer(self, x: int, queue: int, target: int) -> None:
        if self.copies.have[target][x]:
            self._wait_for_users((target, x), queue)
        new = not self.copies.have[target][x]
        super()._transfer(x, queue, target)
        if new and target == Memory.DEVICE:
            self._lay(x)
        self._use((source_of(queue), x), queue)
        self._use((target, x), queue)

    def _compute(self, operation: int, mode_index: int) -> None:
        graph, workspace = self.graph, 0
        queue: int = Queue.COMPUTE
        memory: int = Memory.DEVICE
        if mode_index != DEFAULT_MODE:
            mode = graph.operations.modes[operation][mode_index - 1]
            if mode.on_host:
                queue, memory, workspace = Queue.CPU, Memory.HOST, mode.workspace
        on_peers = self.on_peers.get(operation, ())
        for x in graph.mutate_lists[operation]:
            self._wait_for_users((Memory.PEERS if x in on_peers else memory, x), queue)
        have, below = self.copies.have[memory], graph.made_on_host(operation, mode_index)
        made = [x for x, _bit in graph.contributions(operation, mode_index)]
        comes = [x for x in made if x not in below and not have[x]]  # read before the walk makes them
        super()._compute(operation, mode_index)
        if queue == Queue.COMPUTE:
            for x in (*comes, WORKSPACE):
                self._lay(x)
        else:
            for x in (*graph.input_lists[operation], *made):
                self._use((memory, x), queue)
            if workspace:
                self._gate = self.step

    def _use(self, copy: Copy, queue: int) -> None:
        self._users.setdefault(copy, {})[queue] = self.step

    def _wait_for_users(self, copy: Copy, queue: int) -> None:
        for user, step in self._users.get(copy, {}).items():
            if user != queue:
                self._wait(step)

    def _wait(self, step: int) -> None:
        self._more.setdefault(self.step, set()).add(step)

    # ── from iteration to iteration ──────────────────────────────────────────────────────────────────────

    def _end_of_iteration(self) -> None:
        for x in self.graph.results:
            for memory in self.copies.memories(x):
                if self.copies.readable((memory, x)):
                    made = self.copies.made.get((memory, x), {})
                    self._results[x] = (memory, tuple(made.values()))
                    break
        super()._end_of_iteration()

    def _next_iteration(self) -> None:
        """Number the steps from the next iteration's start; those of the iteration before are then over."""
        steps = len(self.schedule)
        moved = {
            copy: {queue: step - steps for queue, step in users.items() if step >= 0}
            for copy, users in self._users.items()
        }
        self._users = {copy: users for copy, users in moved.items() if users}
        self._former = [
            former._replace(users=users)
            for former in self._former
            if (users := tuple(step - steps for step in former.users if step >= 0))
        ]
        self._gate = self._gate - steps if self._gate is not None and self._gate >= 0 else None

    def _relative_leaving(self) -> list[list[tuple[int, int]]]:
        return [[(self._number - number, key) for number, key in deletes] for deletes in self._leaving]
