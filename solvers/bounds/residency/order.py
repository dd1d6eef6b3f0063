"""What has surely run, and what surely has not, at the moment when an operation runs for the first time.

With the first runs in the file's order every operation is on one side. In any order that the dependencies
allow, only what must run before or after is: an operation runs after the producers of what it reads, on
its side of every change in place, and random ones keep the file's order among themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ....graphs.graph import Graph

AFTER, BEFORE, OPEN = 0, 1, 2
"""Where the first run of another operation is."""


@dataclass(frozen=True)
class Moment:
    """The first run of `operation`. side: per operation AFTER, BEFORE (the operation itself is) or OPEN."""

    operation: int
    side: bytes


Order = Callable[[int], Moment]
"""From an operation to its moment."""


def file_order(graph: Graph) -> Order:
    count = len(graph.operations)

    def moment(operation: int) -> Moment:
        before = operation + 1
        return Moment(operation, bytes((BEFORE,)) * before + bytes((AFTER,)) * (count - before))

    return moment


def any_order(before: list[list[int]]) -> Order:
    """before: `predecessors` of the graph."""
    after: list[list[int]] = [[] for _ in before]
    for operation, row in enumerate(before):
        for other in row:
            after[other].append(operation)

    def moment(operation: int) -> Moment:
        side = bytearray((OPEN,)) * len(before)
        side[operation] = AFTER
        for other in range(operation, len(side)):
            if side[other] == AFTER:
                for following in after[other]:
                    side[following] = AFTER
        side[operation] = BEFORE
        for other in range(operation, -1, -1):
            if side[other] == BEFORE:
                for leading in before[other]:
                    side[leading] = BEFORE
        return Moment(operation, bytes(side))

    return moment


def predecessors(graph: Graph) -> list[list[int]]:
    """Per operation: others whose first run comes before its own in every schedule. All stand before it in
    the file; what follows from these through others is left out."""
    producers = graph.producers.lists()
    before = [{producer for x in inputs for producer in producers[x]} for inputs in graph.input_lists]
    changed: list[int] = graph.operations.mutates.columns.tolist()
    for x in set(changed):
        changes: list[int] = graph.mutators[x].tolist()
        for user in {*changes, *producers[x], *graph.consumers[x].tolist()}:
            for change in changes:
                if user != change:
                    before[max(user, change)].add(min(user, change))
    random: list[int] = graph.operations.random.nonzero()[0].tolist()
    for earlier, later in pairwise(random):
        before[later].add(earlier)
    return [sorted(row) for row in before]
