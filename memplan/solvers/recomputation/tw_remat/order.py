"""The recursion of tw-remat: a piece's separator first, operation by operation, then its parts one by one.

    compute(piece, targets):                              the targets that are missing are made
        for x in separator, in order, if needed:
            for part in parts: compute(part, what x reads of it)
            run x                                         then the parts are forgotten
        for part in parts: compute(part, targets in it)   the separator is resident: parts are independent
        forget all but the targets

With a tree decomposition of width w the recursion keeps at most w + 1 separator operations and what the
current one reads, on log2 n levels; a part is entered at most w + 2 times, so n^(1 + log2(w + 2)) runs in the
worst case, in which every part is made from nothing each time.

A piece whose missing operations make few enough bytes (`leaf_bytes`) runs them in traced order and keeps them
meanwhile. What has to run sometime and can, runs with the first visit of its piece (a parameter's gradient,
which nobody reads), so that the last visit need not recompute everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ....graphs.closure import closure
from ....graphs.graph import Graph
from ....planner.schedule.sequence import Run, in_default_mode
from .tree import Piece


class TooLongError(Exception):
    """The sequence would have more than the allowed number of runs."""


class Dependencies:
    """Constraints on an order of runs.

    predecessors: per operation, the producers of what it reads.
    last: operations that change a tensor in place, and all that must run after one of them. They run once, at
        the end and in traced order, from inputs that are kept for them.
    kept: operations that can't be recomputed, or make results; what they make is never forgotten.
    """

    def __init__(self, graph: Graph) -> None:
        count = len(graph.operations)
        producers = graph.producers.lists()
        self.predecessors = [
            sorted({p for x in inputs for p in producers[x]} - {k})
            for k, inputs in enumerate(graph.input_lists)
        ]
        self.last = _after_changes(graph, self.predecessors)
        results = {p for x in graph.results for p in producers[x]}
        self.kept = results | {k for k in range(count) if not graph.operations.recompute[k]}
        first = [k for k in range(count) if k not in self.last]
        self.inner = {k: [p for p in self.predecessors[k] if p not in self.last] for k in first}
        read = {p for row in self.inner.values() for p in row}
        self.sinks = {k for k in first if k not in read}
        self.inputs_of_last = {p for k in self.last for p in self.predecessors[k]} - self.last
        drawn = graph.operations.random.nonzero()[0].tolist()
        self.drawn_before = dict(zip(drawn[1:], drawn, strict=False))


def order(
    dependencies: Dependencies, root: Piece, sizes: Sequence[int], leaf_bytes: int, most_runs: int
) -> list[Run]:
    """Return the sequence of runs of a piece.

    root: the piece of all operations but `dependencies.last`.
    sizes: per operation, the bytes it makes.

    Raises TooLongError beyond `most_runs`.
    """
    recursion = _Recursion(dependencies, sizes, leaf_bytes, most_runs)
    recursion.compute(root, dependencies.inputs_of_last)
    return in_default_mode([*recursion.runs, *sorted(dependencies.last)])


class _Recursion:
    def __init__(
        self, dependencies: Dependencies, sizes: Sequence[int], leaf_bytes: int, most_runs: int
    ) -> None:
        self.dependencies, self.sizes = dependencies, sizes
        self.leaf_bytes, self.most_runs = leaf_bytes, most_runs
        self.runs: list[int] = []
        self.ran: set[int] = set()
        self.there: set[int] = set()

    def compute(self, piece: Piece, targets: Iterable[int]) -> None:
        """Make the targets; all else that it makes is forgotten."""
        members = set(piece.members)
        wanted = {*targets, *self._due(piece)} - self.there
        missing = self._missing(wanted)
        if not missing:
            return
        # What is missing may reach outside the piece: then there is no way through its parts.
        by_parts = piece.parts and missing <= members and self._bytes(missing) > self.leaf_bytes
        if by_parts:
            self._by_parts(piece, wanted, missing)
        else:
            self._run(sorted(missing))
        self._forget(missing - wanted)

    def _by_parts(self, piece: Piece, wanted: set[int], missing: set[int]) -> None:
        for x in piece.separator:
            if x in missing:
                read = set(self._before(x))
                for part in piece.parts:
                    self.compute(part, read.intersection(part.members))
                self._run([x])
                # Only what this call has made, and neither the separator nor a target.
                self._forget(read.difference(piece.separator, wanted) & missing)
        for part in piece.parts:
            self.compute(part, wanted.intersection(part.members))

    def _due(self, piece: Piece) -> set[int]:
        """Return the operations that nobody reads and that have not run, if the piece can run them now."""
        sinks = self.dependencies.sinks
        due = [k for k in piece.members if k in sinks and k not in self.ran]
        if not due:
            return set()
        possible: set[int] = set()
        for k in piece.members:
            # Members are in order, so predecessors within the piece come first.
            if all(p in self.there or p in possible for p in self._before(k)):
                possible.add(k)
        return possible.intersection(due)

    def _before(self, k: int) -> Iterator[int]:
        """Yield the operations that must be resident, or have run, before k runs now."""
        yield from self.dependencies.inner[k]
        if (
            k not in self.ran
            and (drawn := self.dependencies.drawn_before.get(k)) is not None
            # First draws of random numbers keep the traced order.
            and drawn not in self.ran
        ):
            yield drawn

    def _missing(self, wanted: set[int]) -> set[int]:
        """Return the operations with all that must run for them."""
        return closure(wanted, lambda k: (p for p in self._before(k) if p not in self.there))

    def _bytes(self, operations: Iterable[int]) -> int:
        return sum(self.sizes[k] for k in operations)

    def _run(self, operations: Sequence[int]) -> None:
        self.runs += operations
        self.ran.update(operations)
        self.there.update(operations)
        if len(self.runs) > self.most_runs:
            raise TooLongError

    def _forget(self, operations: set[int]) -> None:
        # It is not deleted here: the schedule deletes after the last use. What is forgotten is recomputed
        # if it is needed later.
        self.there -= operations - self.dependencies.kept


def _after_changes(graph: Graph, predecessors: list[list[int]]) -> set[int]:
    """Return the operations that run last, those that change tensors and what follows.

    What draws random numbers after one of them is included: first draws keep the traced order.
    """
    last: set[int] = set()
    changed: set[int] = set()
    drawn = False
    for k, mutates in enumerate(graph.mutate_lists):
        touched = {*graph.read_lists[k], *mutates, *graph.operations.writes[k].tolist()}
        draws = bool(graph.operations.random[k])
        if mutates or touched & changed or last.intersection(predecessors[k]) or (draws and drawn):
            last.add(k)
            changed.update(mutates)
            drawn |= draws
    return last
