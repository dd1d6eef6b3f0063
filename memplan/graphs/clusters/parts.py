"""The parts of an iteration, and which operation must come before which.

An operation depends on the producers of what it reads or changes; a change in place comes after all uses
before it in traced order, and before all uses after it; operations that draw random numbers keep their order.
Vectorised; linear in the edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..adjacency import Adjacency
from ..graph import Graph, Phase

Operations = NDArray[np.int64]
_Edges = tuple[NDArray[np.int64], NDArray[np.int64]]

ALL_PAIRS = 8
"""A tensor with more producers and more users than this has its users depend on its last producer, and that
one on the others: fewer edges."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The operations of each part of an iteration, in traced order, and their dependencies.

    forward: before the loss. middle: the loss and the forward operations after it.
    backward: up to the last backward operation. after: all that follows it.
    needs: row o holds the operations that must run before o, in traced order.
    """

    forward: Operations
    middle: Operations
    backward: Operations
    after: Operations
    needs: Adjacency


def parts(graph: Graph) -> Parts:
    """Divide an iteration into its parts.

    What depends on the backward part belongs to it, whatever its phase. Without a forward part there is
    nothing to cluster: all operations up to the last backward one are the middle.
    """
    phase, needs = graph.operations.phase, dependencies(graph)
    late = (phase == Phase.BACKWARD) | (phase == Phase.UPDATE)
    later = np.flatnonzero(phase == Phase.BACKWARD)
    # Without a backward part it ends with the last operation that is no update.
    stop = int(later[-1]) + 1 if len(later) else int(np.flatnonzero(~late)[-1]) + 1 if (~late).any() else 0
    if late.any():
        # In traced order: what an operation needs has been decided.
        for operation in (int(np.argmax(late)) + np.flatnonzero(~late[np.argmax(late) :])).tolist():
            late[operation] = late[needs[operation]].any()
    ahead = np.flatnonzero(~late[:stop])
    loss = np.flatnonzero(phase[ahead] == Phase.LOSS)
    cut = int(loss[0]) if len(loss) else len(ahead)  # without a loss there is no middle
    if cut == 0:
        empty = np.zeros(0, np.int64)
        return Parts(empty, np.arange(stop), empty, np.arange(stop, len(phase)), needs)
    return Parts(ahead[:cut], ahead[cut:], np.flatnonzero(late[:stop]), np.arange(stop, len(phase)), needs)


def dependencies(graph: Graph) -> Adjacency:
    """Return the dependencies: row o holds the operations that must run before o, each once, in traced
    order."""
    edges = [_from_producers(graph), _from_changes(graph), _from_random(graph)]
    before, after = (np.concatenate(column) for column in zip(*edges, strict=True))
    count = len(graph.operations)
    # One sort by (after, before) makes the rows and drops repeated edges. An operation does not need itself.
    keys = np.unique(after[before < after] * count + before[before < after])
    start = np.searchsorted(keys, np.arange(count + 1) * count)
    return Adjacency(start.astype(np.int64), (keys % max(1, count)).astype(np.int32))


def _from_producers(graph: Graph) -> _Edges:
    operations, producers = graph.operations, graph.producers
    user = np.concatenate([operations.reads.rows(), operations.mutates.rows()])
    tensor = np.concatenate([operations.reads.columns, operations.mutates.columns])
    made = producers.counts()
    crowded = (made > ALL_PAIRS) & (np.bincount(tensor, minlength=len(made)) > ALL_PAIRS)
    first = np.where(crowded, producers.start[1:] - 1, producers.start[:-1])[tensor]
    count = producers.start[1:][tensor] - first
    entry = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
    within = crowded[graph.operations.writes.transpose(len(made)).rows()]
    # The last entry of each row. Of an empty row it is another row's, and is not used.
    last = producers.columns[producers.start[1:] - 1] if len(producers.columns) else producers.columns
    return (
        np.concatenate([producers.columns[entry], producers.columns[within]]).astype(np.int64),
        np.concatenate([np.repeat(user, count), last[producers.rows()[within]]]).astype(np.int64),
    )


def _from_changes(graph: Graph) -> _Edges:
    before: list[int] = []
    after: list[int] = []
    for x in np.unique(graph.operations.mutates.columns).tolist():
        changes = set(graph.mutators[x].tolist())
        uses = sorted({*graph.consumers[x].tolist(), *changes})
        # Reads since the last change, all of which the next change must wait for.
        since, change = list[int](), -1
        for use in uses:
            if change >= 0:
                before.append(change)
                after.append(use)
            if use in changes:
                before.extend(since)
                after.extend([use] * len(since))
                since, change = [], use
            else:
                since.append(use)
    return np.array(before, np.int64), np.array(after, np.int64)


def _from_random(graph: Graph) -> _Edges:
    # Neighbours are enough: the order follows along the chain.
    drawn = np.flatnonzero(graph.operations.random)
    return drawn[:-1], drawn[1:]
