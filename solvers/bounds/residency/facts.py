"""A graph as the residency bound sees it: what takes memory, and what may run again."""

from __future__ import annotations

from functools import cached_property
from threading import Lock
from typing import NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from ....graphs.adjacency import Adjacency, Indices
from ....graphs.arrays import Floats, Ints
from ....graphs.graph import Graph
from ...stages.slots import ways_of
from .order import AFTER, BEFORE, Moment, predecessors


class Edges(NamedTuple):
    """The same as columns, for compiled code: of row k, entries start[k] … start[k + 1] − 1.

    ends: per operation, the change in place after which it can't run again, else the number of operations.
    """

    output_start: Ints
    outputs: Indices
    producer_start: Ints
    producers: Indices
    use_start: Ints
    uses: Indices
    sizes: Floats
    results: NDArray[np.bool_]
    ends: Ints


def facts_of(graph: Graph) -> Facts:
    """The same for all who ask while one of them has it: of large graphs it is large."""
    with _lock:
        known = _known.get(graph)
        facts = known and known()
        if facts is None:
            facts = Facts(graph)
            _known[graph] = ref(facts)
        return facts


class Facts:
    """Lists indexed by operation or tensor. Tensors that stay on the device are left out of them.

    inputs: per operation, what it reads or changes. outputs: what it writes. surely: what it writes in every
    mode. uses: per tensor, the operations that read or change it. seconds: of an operation's fastest mode.
    once: it can't run again. always: bytes of what never leaves.
    """

    def __init__(self, graph: Graph) -> None:
        operations, resident = graph.operations, graph.resident.tolist()
        self.graph = graph
        self.sizes: list[int] = graph.tensors.bytes.tolist()
        self.producers = graph.producers.lists()
        self.inputs = [[x for x in inputs if not resident[x]] for inputs in graph.input_lists]
        self.outputs = operations.writes.lists()
        ways = {operation: ways_of(graph, operation) for operation in operations.modes}
        self.surely = self.outputs.copy()
        self.seconds: list[float] = operations.time.tolist()
        self.workspace: list[int] = operations.workspace.tolist()
        for operation, row in ways.items():
            self.surely[operation] = [x for x in self.outputs[operation] if all(x in w.writes for w in row)]
            self.seconds[operation] = min(way.time for way in row)
            self.workspace[operation] = min(way.workspace for way in row)
        self.uses = [
            [*readers, *changes] for readers, changes in zip(graph.consumers, graph.mutators, strict=True)
        ]
        self.once: list[bool] = (~operations.recompute | (operations.mutates.counts() > 0)).tolist()
        self.results = {x for x in graph.results if not resident[x]}
        touched = np.zeros(len(resident), np.bool_)
        touched[operations.reads.columns] = True
        touched[operations.mutates.columns] = True
        stays = graph.resident & (touched | ~graph.persistent)
        self.always = int(graph.tensors.bytes[stays].sum())

    @cached_property
    def predecessors(self) -> list[list[int]]:
        return predecessors(self.graph)

    @cached_property
    def edges(self) -> Edges:
        results = np.zeros(len(self.sizes), np.bool_)
        results[list(self.results)] = True
        ends = np.full(len(self.outputs), len(self.outputs))
        for operation, changes in self.ended_by.items():
            ends[operation] = min(changes, default=len(self.outputs))
        writes, makers, uses = self.graph.operations.writes, self.graph.producers, Adjacency.of(self.uses)
        rows = writes.start, writes.columns, makers.start, makers.columns, uses.start, uses.columns
        return Edges(*rows, np.array(self.sizes, np.float64), results, ends)

    @cached_property
    def ended_by(self) -> dict[int, list[int]]:
        """Operation -> the changes in place behind it in the file, after which it can't run again."""
        ends: dict[int, list[int]] = {}
        changed: list[int] = self.graph.operations.mutates.columns.tolist()
        for x in set(changed):
            changes: list[int] = self.graph.mutators[x].tolist()
            readers: list[int] = self.graph.consumers[x].tolist()
            for user in {*self.producers[x], *readers}:
                ends.setdefault(user, []).extend(change for change in changes if change > user)
        return ends

    def touched(self, operation: int) -> set[int]:
        """What surely is on the device while the operation runs for the first time."""
        return {*self.inputs[operation], *self.surely[operation]}

    def least_bytes(self, operation: int) -> int:
        """What the operation alone needs, with all that never leaves the device."""
        sizes = self.sizes
        return self.always + self.workspace[operation] + sum(sizes[x] for x in self.touched(operation))

    @cached_property
    def floor(self) -> int:
        """Bytes that some operation, or having all results at the end, needs."""
        results = self.always + sum(self.sizes[x] for x in self.results)
        return max([results, *map(self.least_bytes, range(len(self.outputs)))])

    def recomputable(self, moment: Moment) -> bytearray:
        """Per operation: it may run again after the moment, to the use of something later."""
        side, recomputable = moment.side, bytearray(len(self.once))
        for operation in range(len(self.once) - 1, -1, -1):
            if side[operation] == AFTER or self.once[operation]:
                continue
            if any(side[change] == BEFORE for change in self.ended_by.get(operation, ())):
                continue
            recomputable[operation] = any(
                self.used_after(x, side, recomputable) for x in self.outputs[operation]
            )
        return recomputable

    def used_after(self, x: int, side: bytes, recomputable: bytearray) -> bool:
        """Something after the moment may need tensor x. recomputable: filled for all users of x."""
        return x in self.results or any(side[use] != BEFORE or recomputable[use] for use in self.uses[x])


_lock = Lock()
_known: WeakKeyDictionary[Graph, ReferenceType[Facts]] = WeakKeyDictionary()
