"""The least device bytes of any schedule of a small graph with host memory, by exhaustive search.

Written from the rules alone: a search over states (which contributions are where, what is stale, what has
run) for the path whose largest number of bytes is least. Any order, any variants, any start of persistent
tensors, any copies on the links that are there, which may be one, or none. Host memory of any size unless
stated, no disk. Knows neither the simulator nor a solver.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import product
from typing import NamedTuple

from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine

DEVICE, HOST = 0, 1
Places = tuple[tuple[int, ...], tuple[int, ...]]
"""Per memory and tensor: the contributions there, as bits."""


class State(NamedTuple):
    there: Places
    stale: frozenset[tuple[int, int]]
    ran: int


class Variant(NamedTuple):
    """where: memory that it runs on. reads, writes: tensor to memory. workspace: on the device."""

    where: int
    reads: dict[int, int]
    writes: dict[int, int]
    workspace: int


def least_bytes(graph: Graph, machine: Machine | None = None) -> int | None:
    """Bytes; None where no schedule exists on any device."""
    links = (machine or Machine()).links
    search = _Search(graph, links.d2h is not None, links.h2d is not None, machine)
    found = [least for start in search.starts() if (least := search.run(start)) is not None]
    return min(found, default=None)


class _Search:
    def __init__(self, graph: Graph, down: bool, up: bool, machine: Machine | None) -> None:
        self.graph, self.down, self.up = graph, down, up
        self.capacity = machine.host_capacity if machine else None
        self.operations = [graph.operation(o) for o in range(len(graph.operations))]
        self.sizes: list[int] = graph.tensors.bytes.tolist()
        self.persistent: list[bool] = graph.persistent.tolist()
        self.resident: list[bool] = graph.resident.tolist()
        self.bit: dict[tuple[int, int], int] = {}
        counts = [0] * len(self.sizes)
        for o, operation in enumerate(self.operations):
            for x in operation.writes:
                self.bit[x, o] = 1 << counts[x]
                counts[x] += 1
        self.whole = [(1 << max(1, count)) - 1 for count in counts]
        self.variants = [list(self._variants(o)) for o in range(len(self.operations))]

    def _variants(self, o: int) -> Iterator[Variant]:
        operation = self.operations[o]
        inputs = {*operation.reads, *operation.mutates}
        yield Variant(
            DEVICE,
            dict.fromkeys(inputs, DEVICE),
            dict.fromkeys(operation.writes, DEVICE),
            operation.workspace,
        )
        for mode in operation.modes:
            if mode.on_host:
                yield Variant(HOST, dict.fromkeys(inputs, HOST), dict.fromkeys(mode.writes, HOST), 0)
            else:
                reads = {x: HOST if x in mode.reads_host else DEVICE for x in inputs}
                writes = {x: HOST if x in mode.writes_host else DEVICE for x in mode.writes}
                yield Variant(DEVICE, reads, writes, mode.workspace)

    def starts(self) -> Iterator[State]:
        choices = [
            ((1, 0), (0, 1), (1, 1)) if persistent else ((1, 0),) if resident else ((0, 0),)
            for persistent, resident in zip(self.persistent, self.resident, strict=True)
        ]
        for chosen in product(*choices):
            there = tuple(x[DEVICE] for x in chosen), tuple(x[HOST] for x in chosen)
            if self.capacity is None or self._bytes(there[HOST]) <= self.capacity:
                yield State(there, frozenset(), 0)

    def _bytes(self, row: tuple[int, ...]) -> int:
        return sum(size for size, there in zip(self.sizes, row, strict=True) if there)

    def run(self, start: State) -> int | None:
        first = self._bytes(start.there[DEVICE])
        best, queue = {start: first}, [(first, 0, start)]
        number = 0
        while queue:
            cost, _number, state = heappop(queue)
            if cost > best[state]:
                continue
            if self._ends(start, state):
                return cost
            for needed, after in self._steps(state):
                worst = max(cost, needed)
                if worst < best.get(after, worst + 1):
                    best[after], number = worst, number + 1
                    heappush(queue, (worst, number, after))
        return None

    def _readable(self, state: State, memory: int, x: int) -> bool:
        return state.there[memory][x] == self.whole[x] and (memory, x) not in state.stale

    def _ends(self, start: State, state: State) -> bool:
        if state.ran != (1 << len(self.operations)) - 1:
            return False
        if not all(any(self._readable(state, m, x) for m in (DEVICE, HOST)) for x in self.graph.results):
            return False
        for x in range(len(self.sizes)):
            if self.persistent[x]:
                for memory in (DEVICE, HOST):
                    if bool(state.there[memory][x]) != bool(start.there[memory][x]):
                        return False
                    if state.there[memory][x] and not self._readable(state, memory, x):
                        return False
        return True

    def _steps(self, state: State) -> Iterator[tuple[int, State]]:
        yield from self._deletes(state)
        yield from self._copies(state)
        for o in range(len(self.operations)):
            if self._admitted(state, o):
                for variant in self.variants[o]:
                    yield from self._computed(state, o, variant)

    def _deletes(self, state: State) -> Iterator[tuple[int, State]]:
        for memory, x in product((DEVICE, HOST), range(len(self.sizes))):
            if not state.there[memory][x] or (self.resident[x] and not self.persistent[x]):
                continue
            last = self._readable(state, memory, x) and not self._readable(state, 1 - memory, x)
            if not (self.persistent[x] and last):
                yield 0, _put(state, memory, x, 0, stale=False)

    def _copies(self, state: State) -> Iterator[tuple[int, State]]:
        for source, linked in ((DEVICE, self.down), (HOST, self.up)):
            for x in range(len(self.sizes)) if linked else ():
                if self._readable(state, source, x):
                    after = _put(state, 1 - source, x, self.whole[x], stale=False)
                    if self._host_fits(after, 0):
                        yield self._bytes(after.there[DEVICE]), after

    def _host_fits(self, state: State, more: int) -> bool:
        return self.capacity is None or self._bytes(state.there[HOST]) + more <= self.capacity

    def _admitted(self, state: State, o: int) -> bool:
        """It may run once more, and each change of what it touches is on its side."""
        operation = self.operations[o]
        if state.ran >> o & 1 and (not operation.recompute or operation.mutates):
            return False
        touched = {*operation.reads, *operation.writes, *operation.mutates}
        for other, changes in enumerate(self.operations):
            if other != o and touched & {*changes.mutates} and (state.ran >> other & 1) != (other < o):
                return False
        return True

    def _computed(self, state: State, o: int, variant: Variant) -> Iterator[tuple[int, State]]:
        if not all(self._readable(state, memory, x) for x, memory in variant.reads.items()):
            return
        spare, after = [variant.workspace, 0], state._replace(ran=state.ran | 1 << o)
        for x, memory in variant.writes.items():
            present, bit = after.there[memory][x], self.bit[x, o]
            if present & bit:
                spare[memory] += self.sizes[x]
            after = _put(after, memory, x, present | bit, stale=(memory, x) in after.stale)
        for x in self.operations[o].mutates:
            if after.there[1 - variant.where][x]:
                after = after._replace(stale=after.stale | {(1 - variant.where, x)})
        if self._host_fits(after, spare[HOST]):
            yield self._bytes(after.there[DEVICE]) + spare[DEVICE], after


def _put(state: State, memory: int, x: int, bits: int, *, stale: bool) -> State:
    row = list(state.there[memory])
    row[x] = bits
    there = (tuple(row), state.there[HOST]) if memory == DEVICE else (state.there[DEVICE], tuple(row))
    marks = state.stale | {(memory, x)} if stale else state.stale - {(memory, x)}
    return State(there, marks, state.ran)
