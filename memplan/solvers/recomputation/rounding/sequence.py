"""A sequence of runs from what may be recomputed, the first runs in traced order; compiled.

At each of some moments (first runs of operations) all is dropped that the operation does not touch and that
can be recomputed: what only operations of a given set make. What a first run then misses is recomputed right
before it, by a closure over what is not resident, and stays until the next moment. So memory at the moments
is what the residency program counts there, and every run finds its inputs.

O(edges) for the first runs, O(tensors) for each moment, and the runs that are added.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled, inner
from ....graphs.graph import Graph

_MOST_RUNS = 4
"""Most runs of an operation, on average: a sequence with more is dropped."""

Flags = NDArray[np.bool_]


class Rows(NamedTuple):
    """A graph's edges in compressed rows: row k has entries start[k] … start[k + 1] − 1.

    inputs, outputs: of operations.
    producers: of tensors.
    stays: per tensor, it is never dropped.
    once: per operation, it can't be recomputed.
    ends: per operation, the first change in place of what it touches.
    sizes: of tensors, bytes.
    """

    input_start: Ints
    inputs: Ints
    output_start: Ints
    outputs: Ints
    producer_start: Ints
    producers: Ints
    stays: Flags
    once: Flags
    ends: Ints
    sizes: Ints


def rows_of(graph: Graph) -> Rows:
    operations, count = graph.operations, len(graph.operations)
    inputs = graph.inputs
    stays = graph.resident.copy()
    stays[list(graph.results)] = True
    ends = np.full(count, count)
    changed: list[int] = np.unique(operations.mutates.columns).tolist()
    for x in changed:
        changes = graph.mutators[x].astype(np.int64)
        users = np.concatenate([graph.producers[x], graph.consumers[x], graph.mutators[x]]).astype(np.int64)
        # The first change after each user; `count` if there is none.
        following = np.append(changes, count)[np.searchsorted(changes, users, side="right")]
        np.minimum.at(ends, users, following)
    once = ~operations.recompute | (operations.mutates.counts() > 0)
    writes, producers = operations.writes, graph.producers
    read, written, made = (rows.columns.astype(np.int64) for rows in (inputs, writes, producers))
    return Rows(
        input_start=inputs.start,
        inputs=read,
        output_start=writes.start,
        outputs=written,
        producer_start=producers.start,
        producers=made,
        stays=stays,
        once=once,
        ends=ends,
        sizes=graph.tensors.bytes,
    )


def sequence_of(rows: Rows, recomputed: Flags, moments: Ints, reach: float) -> Ints | None:
    """Return the operations, in the order in which they run. None if they are too many.

    recomputed: per operation, whether it may be recomputed.
    moments: operations, increasing.
    reach: bytes on a path along which all is recomputed.
    """
    runs = np.empty(_MOST_RUNS * len(rows.once), np.int64)
    length = np.zeros(1, np.int64)
    _fill(rows, recomputed & ~rows.once, moments, reach, runs, length)
    return None if length[0] < 0 else runs[: length[0]]


@compiled
def _fill(rows: Rows, recomputed: Flags, moments: Ints, reach: float, runs: Ints, length: Ints) -> None:
    """Write the sequence of runs.

    recomputed: loses the operations that would come too late, or on too long a path.
    runs, length: take the sequence; −1: there is not enough space.
    """
    operations, tensors = len(rows.once), len(rows.stays)
    _leave_out_late(rows, recomputed)
    _leave_out_far(rows, recomputed, reach)
    drops = np.zeros(tensors, np.bool_)
    waiting = np.zeros(tensors, np.int64)
    for x in range(tensors):
        waiting[x] = rows.producer_start[x + 1] - rows.producer_start[x]
        drops[x] = not rows.stays[x]
        for k in range(rows.producer_start[x], rows.producer_start[x + 1]):
            # Each contribution must be remakable.
            drops[x] &= recomputed[rows.producers[k]]
    there = waiting == 0
    touched = np.full(tensors, -1)
    wanted, pending = np.full(operations, -1), np.empty(operations, np.int64)
    fill, following = 0, 0
    for operation in range(operations):
        if following < len(moments) and moments[following] == operation:
            following += 1
            for k in range(rows.input_start[operation], rows.input_start[operation + 1]):
                touched[rows.inputs[k]] = operation
            for k in range(rows.output_start[operation], rows.output_start[operation + 1]):
                touched[rows.outputs[k]] = operation
            for x in range(tensors):
                # Only whole tensors: a sum still under way could not be completed a second time.
                if drops[x] and touched[x] != operation and waiting[x] == 0:
                    there[x] = False
        count = _ask(rows, there, operation, operation, wanted, pending, 0)
        begin = fill
        while count:
            count -= 1
            producer = pending[count]
            # Room is kept for the first runs that are still to come.
            if fill >= len(runs) - operations + operation:
                length[0] = -1
                return
            runs[fill] = producer
            fill += 1
            count = _ask(rows, there, producer, operation, wanted, pending, count)
        # Traced order is one in which the dependencies hold.
        runs[begin:fill].sort()
        for place in range(begin, fill):
            producer = runs[place]
            for k in range(rows.output_start[producer], rows.output_start[producer + 1]):
                there[rows.outputs[k]] |= _whole(rows, rows.outputs[k], operation, wanted)
        runs[fill] = operation
        fill += 1
        for k in range(rows.output_start[operation], rows.output_start[operation + 1]):
            waiting[rows.outputs[k]] -= 1
            there[rows.outputs[k]] |= waiting[rows.outputs[k]] == 0
    length[0] = fill


@inner
def _ask(
    rows: Rows, there: Flags, operation: int, ahead: int, wanted: Ints, pending: Ints, count: int
) -> int:
    """Add the producers of what an operation misses to those pending; return how many those are."""
    for k in range(rows.input_start[operation], rows.input_start[operation + 1]):
        x = rows.inputs[k]
        if not there[x]:
            for index in range(rows.producer_start[x], rows.producer_start[x + 1]):
                producer = rows.producers[index]
                if wanted[producer] != ahead:
                    wanted[producer] = ahead
                    pending[count] = producer
                    count += 1
    return count


@inner
def _whole(rows: Rows, x: int, ahead: int, wanted: Ints) -> bool:
    """Tell whether all that contribute to tensor x run before the first run `ahead`."""
    for k in range(rows.producer_start[x], rows.producer_start[x + 1]):
        if wanted[rows.producers[k]] != ahead:
            return False
    return True


@inner
def _leave_out_late(rows: Rows, recomputed: Flags) -> None:
    """Remove from `recomputed` what might be recomputed only after a change in place of what it touches."""
    operations = len(recomputed)
    until = np.full(len(rows.stays), -1)  # per tensor, the last first run before which it may be needed
    for operation in range(operations - 1, -1, -1):
        latest = operation
        for k in range(rows.output_start[operation], rows.output_start[operation + 1]):
            latest = max(latest, until[rows.outputs[k]])
        # Before the change's first run is still in time, so `>`.
        if latest > rows.ends[operation]:
            recomputed[operation] = False
        asked = latest if recomputed[operation] else operation
        for k in range(rows.input_start[operation], rows.input_start[operation + 1]):
            until[rows.inputs[k]] = max(until[rows.inputs[k]], asked)


@inner
def _leave_out_far(rows: Rows, recomputed: Flags, reach: float) -> None:
    """Remove from `recomputed` where a path of recomputed operations would become longer than `reach`."""
    variant = np.zeros(len(rows.stays))  # per tensor, bytes of what is recomputed on the longest path to it
    for operation in range(len(recomputed)):
        length = 0.0
        for k in range(rows.input_start[operation], rows.input_start[operation + 1]):
            length = max(length, variant[rows.inputs[k]])
        for k in range(rows.output_start[operation], rows.output_start[operation + 1]):
            length += rows.sizes[rows.outputs[k]]
        recomputed[operation] &= length <= reach
        for k in range(rows.output_start[operation], rows.output_start[operation + 1]):
            if recomputed[operation] and not rows.stays[rows.outputs[k]]:
                variant[rows.outputs[k]] = max(variant[rows.outputs[k]], length)
