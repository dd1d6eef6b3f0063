"""Sides of a moment: which operations have surely run, and which surely not, when one first runs.

With the first runs in traced order every operation is on one side. In any order that the dependencies allow,
only what must run before or after is: an operation runs after the producers of what it reads, on its side of
every change in place, and random ones keep the traced order among themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....graphs.adjacency import Adjacency, Indices
from ....graphs.arrays import Ints
from ....graphs.compiled import compiled
from ....graphs.graph import Graph

AFTER, BEFORE, OPEN = 0, 1, 2
"""Side on which the first run of another operation is."""


@dataclass(frozen=True)
class Moment:
    """The first run of `operation`. side: per operation AFTER, BEFORE (the operation itself is) or OPEN."""

    operation: int
    side: bytes


Order = Callable[[int], Moment]
"""Function from an operation to its moment."""


def file_order(graph: Graph) -> Order:
    count = len(graph.operations)

    def moment(operation: int) -> Moment:
        before = operation + 1
        return Moment(operation, bytes((BEFORE,)) * before + bytes((AFTER,)) * (count - before))

    return moment


def any_order(before: Adjacency) -> Order:
    """Return the order in which only the dependencies are known.

    before: `predecessors` of the graph.
    """

    def moment(operation: int) -> Moment:
        side = np.full(len(before), OPEN, np.uint8)
        known_sides(before.start, before.columns, operation, side)
        return Moment(operation, side.tobytes())

    return moment


@compiled
def known_sides(start: Ints, before: Indices, operation: int, side: NDArray[np.uint8]) -> None:
    """Mark what runs before and after the operation in any order.

    start, before: `predecessors` of the graph, in compressed rows.
    side: takes the result; OPEN everywhere at first.
    """
    side[operation] = AFTER
    # Predecessors have lower numbers: `other` sees the final sides of all of its own.
    for other in range(operation + 1, len(side)):
        for k in range(start[other], start[other + 1]):
            if side[before[k]] == AFTER:
                side[other] = AFTER
    # The moment is the end of its run, so the operation itself counts as BEFORE.
    side[operation] = BEFORE
    for other in range(operation, -1, -1):
        if side[other] == BEFORE:
            for k in range(start[other], start[other + 1]):
                side[before[k]] = BEFORE


def predecessors(graph: Graph) -> Adjacency:
    """Return per operation the others whose first run comes before its own in every schedule, increasing.

    All come before it in traced order; what follows from these through others is left out.
    """
    operations, count = graph.operations, len(graph.operations)
    producers = graph.inputs.through(graph.producers)
    pairs = [producers.rows() * count + producers.columns]
    changed: list[int] = np.unique(operations.mutates.columns).tolist()
    for x in changed:
        changes: list[int] = graph.mutators[x].tolist()
        users = np.concatenate([graph.users[x], graph.producers[x]]).astype(np.int64)
        for change in changes:
            others = users[users != change]
            # A pair is one number, later operation × count + earlier one: unique by sorting.
            pairs.append(np.maximum(others, change) * count + np.minimum(others, change))
    random = np.flatnonzero(operations.random)
    pairs.append(random[1:] * count + random[:-1])
    return Adjacency.of_pairs(*np.divmod(np.unique(np.concatenate(pairs)), max(1, count)), count)
