"""From when to when each copy of a memory is there, and how many bytes it takes.

A schedule is a cycle: a lifetime is an arc on it. Steps are counted from 0 to `steps`; a copy that is there
when the iteration ends goes on into the next.

    step      0 1 2 3 4 5 6 7 | 0 1 2 …        steps = 8
    w         ────╮     ╭─────|────╮           start 5, end 8 + 2: prefetched at step 5, deleted at step 2
    x             ╭───╮       |                start 2, end 4
    workspace         ╶       |                start 4, end 5
    frozen    ────────────────|───────         start 0, end 8: never deleted

A copy whose delete waits for a transfer (it is pending, see the simulator's ledger) is there until an
allocation has waited for it. Its tensor may be resident once more by then, and an arc be longer than an
iteration.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ..schedule.schedule import DEFAULT_MODE, Schedule, Verb
from ..simulator.clock import Queue
from ..simulator.copies import Copy
from ..simulator.pinned import PINNED
from ..simulator.simulate import settle
from ..simulator.walk import Walk

WORKSPACE = -1
_DEVICE, _HOST = int(Memory.DEVICE), int(Memory.HOST)

_MOST_ITERATIONS = 4
"""Iterations until a copy that is made in the first has ended: it is deleted in the next, and gone when two
more have begun."""


class Lifetimes(NamedTuple):
    """Lifetimes of copies as columns, a row per copy: first what is always there, then by start, and of one
    start by tensor.

    tensor: its number; WORKSPACE for a computation's workspace. size: bytes, not 0. start, end: steps,
    0 ≤ start < steps, start < end; in step `end` it is not there any more.
    """

    tensor: Ints
    size: Ints
    start: Ints
    end: Ints
    steps: int

    def live(self) -> Ints:
        """Return the bytes per step."""
        iterations = int(self.end.max(initial=0)) // max(1, self.steps) + 1
        changes = np.zeros(iterations * self.steps + 1, np.int64)
        np.add.at(changes, self.start, self.size)
        np.add.at(changes, self.end, -self.size)
        # Arcs that go on into later iterations are folded into one.
        return np.cumsum(changes)[:-1].reshape(iterations, self.steps).sum(axis=0)

    def there(self, step: int) -> Ints:
        """Return per row the number of its copies that are resident in a step.

        That is 2 if the copy of the iteration before is still resident when the next begins.
        """
        # How many of step, step + steps, step + 2 steps, … lie in start … end − 1.
        return (self.end - 1 - step) // self.steps - (self.start - 1 - step) // self.steps

    def meet(self, i: int, j: int) -> bool:
        """Tell whether two rows, none longer than an iteration, are resident in one step."""
        (s, e), (t, f) = ((int(self.start[row]), int(self.end[row])) for row in (i, j))
        return (s < f and t < e) or s + self.steps < f or t + self.steps < e

    def of(self, rows: NDArray[np.bool_] | Ints) -> Lifetimes:
        """Return some of the rows."""
        return Lifetimes(self.tensor[rows], self.size[rows], self.start[rows], self.end[rows], self.steps)

    def in_order(self) -> Lifetimes:
        """Return the rows in their order."""
        order = np.lexsort((self.tensor, self.start, self.end - self.start < self.steps))
        return self.of(order)

    def cut(self) -> Lifetimes:
        """Return the lifetimes cut to at most one iteration: a copy ends when its next one begins."""
        return self._replace(end=np.minimum(self.end, self.start + self.steps))

    def with_more_workspace(self, more: Ints) -> Lifetimes:
        """Return the lifetimes with more bytes of workspace. more: bytes per step."""
        workspaces = self.tensor == WORKSPACE
        size = more.copy()
        np.add.at(size, self.start[workspaces], self.size[workspaces])
        steps, others = np.flatnonzero(size), self.of(~workspaces)
        tensor = np.concatenate([others.tensor, np.full(len(steps), WORKSPACE)])
        start, end = np.concatenate([others.start, steps]), np.concatenate([others.end, steps + 1])
        sizes = np.concatenate([others.size, size[steps]])
        return Lifetimes(tensor, sizes, start, end, self.steps).in_order()

    def in_sections(self) -> Lifetimes:
        """Return the lifetimes in the fewest steps in which the same of them meet.

        A step begins where a copy begins after another has ended: what happens between two such moments
        changes nothing. Lifetimes are at most one iteration long.
        """
        begins, ends = np.zeros(self.steps, np.bool_), np.zeros(self.steps, np.bool_)
        begins[self.start], ends[self.end % self.steps] = True, True
        section, ended, now = np.zeros(self.steps, np.int64), True, -1
        for step in range(self.steps):
            ended |= bool(ends[step])
            # Without an end since the last begin, all that began are there together: the same section.
            if begins[step] and ended:
                now, ended = now + 1, False
            section[step] = now  # -1 before the first begin: the last section of the iteration before
        iterations, last = np.divmod(self.end - 1, self.steps)
        start, end = section[self.start], section[last] + 1 + iterations * (now + 1)
        return self._replace(start=start, end=np.minimum(end, start + now + 1), steps=now + 1)

    def rounded(self, alignment: int) -> Lifetimes:
        """Return the lifetimes with sizes in whole multiples of `alignment` bytes."""
        return self._replace(size=-(-self.size // alignment) * alignment)


def lifetimes(
    graph: Graph,
    schedule: Schedule,
    memory: int = Memory.DEVICE,
    *,
    budget: int | None = None,
    machine: Machine | None = None,
) -> Lifetimes:
    """Compute the lifetimes of all copies in a memory, in the steady state. Raises InvalidScheduleError.

    memory: or PINNED, for the pinned copies on the host.
    budget: device bytes, None for no limit: with less memory allocations wait for more transfers, and copies
    are freed earlier. Workspaces are the device's alone.
    """
    walk = _Recorder(graph, schedule, memory, budget=budget, machine=machine or graph.machine)
    steps, settled = len(schedule), settle(walk)
    # The last iteration walked has the lifetimes of every other one, once those that began in it have ended.
    first = walk.now - steps if settled else walk.now
    for _ in range(_MOST_ITERATIONS):
        # All that began in that iteration has ended: its lifetimes are known.
        if settled and not walk.begun_since(first):
            break
        walk.run_iteration()
    stays = [
        _Life(x, walk.footprint.of(x, memory)[1], first, first + steps)
        for (memory, x), start in walk.there.items()
        if start < first
    ]
    moves = [life for life in walk.gone if first <= life.start < first + steps]
    rows = [(x, size, start - first, end - first) for x, size, start, end in (*stays, *moves) if size]
    tensor, size, start, end = np.array(rows, np.int64).reshape(-1, 4).T
    return Lifetimes(tensor, size, start, end, steps).in_order()


def lifetimes_without_transfers(graph: Graph, schedule: Schedule) -> Lifetimes:
    """Compute the lifetimes on the device for a valid schedule for which `stays_on_device` holds.

    Nothing waits for a transfer then: a copy is there from the step that makes it to its delete. This takes a
    tenth of the time of `lifetimes`, which also validates.
    """
    return arcs_without_transfers(graph, schedule).lifetimes(graph.tensors.bytes, graph.operations.workspace)


class Arcs(NamedTuple):
    """From when to when copies are on the device, whatever their sizes.

    tensor, start, end: per copy. operation, run_step: per run, what runs and in which step.
    repeated, repeated_run: tensors that are made once more while they are there, and the position of the run.
    """

    tensor: Ints
    start: Ints
    end: Ints
    operation: Ints
    run_step: Ints
    repeated: Ints
    repeated_run: Ints
    steps: int

    def transient(self, sizes: Ints, workspace: Ints) -> Ints:
        """Return per run the bytes that are there in its step alone.

        sizes: of the tensors. workspace: of the operations.
        """
        found = workspace[self.operation]
        np.add.at(found, self.repeated_run, sizes[self.repeated])
        return found

    def lifetimes(self, sizes: Ints, workspace: Ints) -> Lifetimes:
        """Return the lifetimes. sizes: of the tensors. workspace: of the operations."""
        tensor = np.concatenate([self.tensor, np.full(len(self.run_step), WORKSPACE)])
        size = np.concatenate([sizes[self.tensor], self.transient(sizes, workspace)])
        start = np.concatenate([self.start, self.run_step])
        end = np.concatenate([self.end, self.run_step + 1])
        there = size > 0
        tensor, size, start, end = tensor[there], size[there], start[there], end[there]
        return Lifetimes(tensor, size, start, end, self.steps).in_order()

    def peak(self, sizes: Ints, workspace: Ints) -> int:
        """Return the most bytes that are there at once.

        sizes: of the tensors. workspace: of the operations.
        """
        changes = np.zeros(self.steps + 1, np.int64)
        np.add.at(changes, self.start, sizes[self.tensor])
        np.subtract.at(changes, self.end, sizes[self.tensor])
        live = np.cumsum(changes)
        running = live[self.run_step] + self.transient(sizes, workspace)
        return max(int(live.max(initial=0)), int(running.max(initial=0)))


def arcs_without_transfers(graph: Graph, schedule: Schedule) -> Arcs:
    """Compute when copies are on the device, for a valid schedule for which `stays_on_device` holds."""
    have = {x: graph.whole_contributions[x] for x in np.flatnonzero(graph.resident).tolist()}
    since, steps = dict.fromkeys(have, 0), len(schedule)
    copies, runs, repeated = list[tuple[int, int, int]](), list[tuple[int, int]](), list[tuple[int, int]]()
    for step, (verb, target, _where) in enumerate(schedule.rows()):
        if verb == Verb.DELETE:
            del have[target]
            copies.append((target, since.pop(target), step))
            continue
        for x, bit in graph.contributions(target):
            present = have.get(x, 0)
            if not present:
                since[x] = step
            elif present & bit:  # made once more, next to the one that is there
                repeated.append((x, len(runs)))
            have[x] = present | bit
        runs.append((target, step))
    copies += [(x, start, steps) for x, start in since.items()]
    tensor, start, end = np.array(copies, np.int64).reshape(-1, 3).T
    operation, run_step = np.array(runs, np.int64).reshape(-1, 2).T
    made_twice, repeated_run = np.array(repeated, np.int64).reshape(-1, 2).T
    return Arcs(
        tensor=tensor,
        start=start,
        end=end,
        operation=operation,
        run_step=run_step,
        repeated=made_twice,
        repeated_run=repeated_run,
        steps=steps,
    )


def stays_on_device(graph: Graph, schedule: Schedule) -> bool:
    """Tell whether all that a schedule runs and holds is on the device."""
    computed = schedule.verbs == Verb.COMPUTE
    return (
        not graph.communicates
        and bool(np.all(computed | (schedule.verbs == Verb.DELETE)))
        and bool(np.all(schedule.wheres == np.where(computed, DEFAULT_MODE, Memory.DEVICE)))
        and all(memories == (Memory.DEVICE,) for memories, _tensors in schedule.initial.groups)
    )


class _Life(NamedTuple):
    """The lifetime of one copy, in steps since the first iteration began."""

    tensor: int
    size: int
    start: int
    end: int


class _Recorder(Walk):
    """A memory pass that records the copies of one memory.

    there: per resident copy since when, below 0 for always. gone: lifetimes that have ended.
    now: the next step, counted from the first iteration on.
    """

    def __init__(
        self, graph: Graph, schedule: Schedule, memory: int, *, budget: int | None, machine: Machine | None
    ) -> None:
        self._memory, self._of = memory, int(Memory.HOST) if memory == PINNED else memory
        self._pending: deque[_Life] = deque()
        self._first = 0
        self.there: dict[Copy, int] = {}
        self.gone: list[_Life] = []
        super().__init__(graph, schedule, budget=budget, machine=machine)
        copies = [(memory, x) for x, memories in self.places.items() for memory in memories]
        self.there = dict.fromkeys(filter(self._noted, copies), -1)

    def _noted(self, copy: Copy) -> bool:
        """Tell whether a resident copy is one of those to record: on the device, shares of spread tensors
        too."""
        memory, x = copy
        where, _size = self.footprint.of(x, memory)
        return where == self._of and (self._memory != PINNED or x in self.pinned)

    @property
    def now(self) -> int:
        return self._first + self.step

    def begun_since(self, first: int) -> bool:
        """Tell whether a copy that was made at step `first` or later is still there."""
        return any(since >= first for since in self.there.values()) or any(
            life.start >= first for life in self._pending
        )

    def run_iteration(self) -> object:
        left = super().run_iteration()
        self._first += len(self.schedule)
        self.step = 0
        return left

    def _pass_fence(self) -> None:
        self.step, fence = 0, -len(self.schedule)
        pending = self.ledgers[self._memory].pending
        # As `settle_before` does: those whose transfers have all ended by the fence.
        over = [max(transfers) < fence for _size, transfers in pending]
        super()._pass_fence()
        for life in [life for life, gone in zip(self._pending, over, strict=True) if gone]:
            self._pending.remove(life)
            self._go(life)

    def _compute(self, operation: int, mode_index: int) -> None:
        have, below = self.copies.have[self._of], self.graph.made_on_host(operation, mode_index)
        made = [
            x
            for x, _bit in self.graph.contributions(operation, mode_index)
            if (x in below) == (self._of == _HOST) and not have[x]
        ]
        super()._compute(operation, mode_index)
        if self._of <= _HOST:  # nothing computes into a deeper memory
            copies = [(self._of, x) for x in made]
            self.there.update(dict.fromkeys(filter(self._noted, copies), self.now))

    def _transfer(self, x: int, queue: int, target: int) -> None:
        # Before the transfer: refreshing a stale copy begins no lifetime.
        new = not self.copies.have[target][x]
        super()._transfer(x, queue, target)
        if new and self._noted((target, x)):
            self.there[target, x] = self.now

    def _allocate(
        self, ledger_of: int, kept: int, transient: int, waits: list[int], queue: int = int(Queue.COMPUTE)
    ) -> None:
        pending = self.ledgers[ledger_of].pending
        before = len(pending)
        super()._allocate(ledger_of, kept, transient, waits, queue)
        if ledger_of != self._memory:
            return
        # The ledger gives up the oldest first, and `_pending` has the same order.
        for _ in range(before - len(pending)):
            self._go(self._pending.popleft())
        if ledger_of == _DEVICE:
            self.gone.append(_Life(WORKSPACE, transient, self.now, self.now + 1))

    def _leave_workspace(self, size: int) -> None:
        super()._leave_workspace(size)
        if size and self._memory == _DEVICE:
            self._pending.append(_Life(WORKSPACE, size, self.now, self.now))

    def _drop(self, copy: Copy) -> None:
        memory, x = copy
        noted = self._noted(copy)
        ledger = self.ledgers[self._memory]
        before = len(ledger.pending)
        super()._drop(copy)
        if not noted:
            return
        _where, size = self.footprint.of(x, memory)
        life = _Life(x, size, self.there.pop(copy), self.now)
        if len(ledger.pending) > before:
            self._pending.append(life)
        else:
            self._go(life)

    def _end_of_iteration(self) -> None:
        self.step = len(self.schedule)
        super()._end_of_iteration()

    def _go(self, life: _Life) -> None:
        # Each copy takes memory for one step at least.
        self.gone.append(life._replace(end=max(self.now, life.start + 1)))
