"""A graph as the residency bound sees it: which tensors take memory, and what may be recomputed."""

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
from ...stages.slots import variants_of
from .order import AFTER, BEFORE, Moment, predecessors


class Edges(NamedTuple):
    """The graph's edges in compressed rows, for compiled code: row k has entries start[k] … start[k + 1] − 1.

    ends: per operation, the change in place after which it can't run a second time, else the number of
        operations.
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


class Pairs:
    """The edges as pairs, int32. Tensors that stay on the device, or have no bytes, have none.

    reads, writes: (tensor, operation).
    ended: (operation, a change in place after which it can't be recomputed).
    sizes, results: per tensor.
    once: per operation.
    """

    def __init__(self, facts: Facts) -> None:
        graph, edges = facts.graph, facts.edges
        self.sizes, self.results = graph.tensors.bytes, edges.results
        counts = ~graph.resident & (self.sizes > 0)
        reads, writes = _columns(graph.users), _columns(graph.producers)
        self.reads, self.writes = reads[counts[reads[:, 0]]], writes[counts[writes[:, 0]]]
        ended = [(o, change) for o, row in facts.ended_by.items() for change in row]
        self.ended = np.array(ended, np.int32).reshape(-1, 2)
        self.once = np.array(facts.once, np.bool_)


def _columns(rows: Adjacency) -> Indices:
    """Return (row, entry) for each entry."""
    return np.column_stack([rows.rows(), rows.columns]).astype(np.int32)


def facts_of(graph: Graph) -> Facts:
    """Return the facts of a graph, one object for all callers while one of them holds it.

    Facts of large graphs are large, so they are not kept when nobody uses them.
    """
    with _lock:
        known = _known.get(graph)
        # A weak reference: None once nobody holds the facts.
        facts = known and known()
        if facts is None:
            facts = Facts(graph)
            _known[graph] = ref(facts)
        return facts


class Facts:
    """Lists indexed by operation or tensor. Tensors that stay on the device are not among inputs or results.

    Lists of lists are made when they are asked for: those of large graphs are large.

    inputs: per operation, what it reads or changes.
    outputs: what it writes.
    uses: per tensor, the operations that read or change it.
    seconds: of an operation's fastest execution variant.
    once: whether it can't be recomputed.
    always: bytes of what never leaves the device.
    """

    def __init__(self, graph: Graph) -> None:
        operations, resident, sizes = graph.operations, graph.resident, graph.tensors.bytes
        self.graph = graph
        self.seconds: list[float] = operations.time.tolist()
        workspace = operations.workspace.copy()
        self._surely = np.ones(len(operations.writes.columns), np.bool_)
        for operation in operations.modes:
            variants, place = variants_of(graph, operation), self._written(operation)
            written: list[int] = operations.writes.columns[place].tolist()
            # A bound may count only what every variant makes, and the least workspace and seconds of any.
            self._surely[place] = [all(x in variant.writes for variant in variants) for x in written]
            self.seconds[operation] = min(variant.time for variant in variants)
            workspace[operation] = min(variant.workspace for variant in variants)
        # An operation that changes a tensor in place would change it twice.
        self.once: list[bool] = (~operations.recompute | (operations.mutates.counts() > 0)).tolist()
        self.results = {x for x in graph.results if not resident[x]}
        touched = np.zeros(len(resident), np.bool_)
        touched[graph.inputs.columns] = True
        # A persistent tensor that no operation touches may lie elsewhere.
        stays = resident & (touched | ~graph.persistent)
        self.always = int(sizes[stays].sum())
        self._least = workspace + self.always
        for rows, tensors in (
            (graph.inputs.rows(), np.where(resident, 0, sizes)[graph.inputs.columns]),
            (operations.writes.rows(), np.where(self._surely, sizes[operations.writes.columns], 0)),
        ):
            np.add.at(self._least, rows, tensors)

    @cached_property
    def sizes(self) -> list[int]:
        return self.graph.tensors.bytes.tolist()

    @cached_property
    def inputs(self) -> list[list[int]]:
        resident: list[bool] = self.graph.resident.tolist()
        return [[x for x in inputs if not resident[x]] for inputs in self.graph.inputs]

    @cached_property
    def outputs(self) -> list[list[int]]:
        return self.graph.operations.writes.lists()

    @cached_property
    def producers(self) -> list[list[int]]:
        return self.graph.producers.lists()

    @cached_property
    def uses(self) -> list[list[int]]:
        return self.graph.users.lists()

    @cached_property
    def predecessors(self) -> Adjacency:
        return predecessors(self.graph)

    @cached_property
    def edges(self) -> Edges:
        graph, count = self.graph, len(self.graph.operations)
        results = np.zeros(len(graph.tensors), np.bool_)
        results[list(self.results)] = True
        ends = np.full(count, count)
        for operation, changes in self.ended_by.items():
            # The first change ends it; `count` stands for never.
            ends[operation] = min(changes, default=count)
        written, made, used = graph.operations.writes, graph.producers, graph.users
        rows = written.start, written.columns, made.start, made.columns, used.start, used.columns
        return Edges(*rows, graph.tensors.bytes.astype(np.float64), results, ends)

    @cached_property
    def order(self) -> Indices:
        """Pairs of an operation and one that must run after it."""
        return _columns(self.predecessors)[:, ::-1]

    @cached_property
    def pairs(self) -> Pairs:
        return Pairs(self)

    @cached_property
    def ended_by(self) -> dict[int, list[int]]:
        """Return operation -> the later changes in place after which it can't be recomputed."""
        ends: dict[int, list[int]] = {}
        changed: list[int] = self.graph.operations.mutates.columns.tolist()
        for x in set(changed):
            changes: list[int] = self.graph.mutators[x].tolist()
            producers: list[int] = self.graph.producers[x].tolist()
            readers: list[int] = self.graph.consumers[x].tolist()
            for user in {*producers, *readers}:
                ends.setdefault(user, []).extend(change for change in changes if change > user)
        return ends

    def touched(self, operation: int) -> set[int]:
        """Return the tensors that are surely on the device while the operation runs for the first time."""
        inputs, place = self.graph.inputs[operation], self._written(operation)
        written = self.graph.operations.writes.columns[place]
        return {*inputs[~self.graph.resident[inputs]].tolist(), *written[self._surely[place]].tolist()}

    def least_bytes(self, operation: int) -> int:
        """Return the bytes that the operation alone needs, with all that never leaves the device."""
        return int(self._least[operation])

    def _written(self, operation: int) -> slice:
        """Return the range of entries of what an operation writes."""
        return slice(*self.graph.operations.writes.start[operation : operation + 2])

    @property
    def minimum(self) -> int:
        """Bytes that some operation, or having all results at the end, needs."""
        results = self.always + int(self.graph.tensors.bytes[list(self.results)].sum())
        return int(self._least.max(initial=results))

    def recomputable(self, moment: Moment) -> bytearray:
        """Return per operation whether it may be recomputed after the moment, for a later operation."""
        side, recomputable = moment.side, bytearray(len(self.once))
        # Users have higher numbers, so their entries are final.
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
        """Tell whether something after the moment may need tensor x.

        recomputable: filled for all users of x.
        """
        return x in self.results or any(side[use] != BEFORE or recomputable[use] for use in self.uses[x])


_lock = Lock()
_known: WeakKeyDictionary[Graph, ReferenceType[Facts]] = WeakKeyDictionary()
