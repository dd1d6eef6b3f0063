"""One iteration as rows: what takes a queue, in list order, and what happens to copies before it.

A row is a run or a transfer. Only copies of *moving* tensors are distinguished, those that some transfer or
collective touches, or some run in host memory; all other tensors are bytes that rows demand. Deletes belong
to the row after them; a last row, without a queue, takes those at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import inner
from ...graphs.machine import MOST_MEMORIES, Memory
from ..schedule.schedule import Verb
from ..simulator import clock as judge

COMPUTE, DELETE, OFFLOAD, PREFETCH = (
    int(Verb.COMPUTE),
    int(Verb.DELETE),
    int(Verb.OFFLOAD),
    int(Verb.PREFETCH),
)
DEVICE, HOST, PEERS = int(Memory.DEVICE), int(Memory.HOST), int(Memory.PEERS)

write_queue, read_queue = inner(judge.write_queue), inner(judge.read_queue)
"""The numbers of the queues of copies to a memory, as compiled code calls them."""

QUEUE, MEMORY, DEMAND, EVENTS_END, PINNED_DEMAND, TURN, JOINED, HELD = range(8)
"""The columns of a row. QUEUE: of a transfer, that of its direction. MEMORY: in which its bytes count.
DEMAND: bytes there while it runs, if all deletes were immediate. EVENTS_END: of its events in the flat list.
PINNED_DEMAND: bytes that would be pinned, 0 if it makes no such copy. TURN: the queue whose
lanes it holds.
JOINED: 1 if it is part of the collective of the row before it (planner/simulator/collectives.py).
HELD: bytes that a collective which is an operation holds for itself until it has ended."""

COLUMNS = HELD + 1

SIZE, SHARE, SPREAD = range(3)
"""The columns of a moving tensor: bytes; those of a copy on the peers; 1 if its lower memory is the peers."""

RUN, LAUNCH, WAIT = range(3)
"""The columns of a row's seconds: what it takes on its queue, and the training thread to launch it; how long
its queue waited for it, once the clock has been played."""

READ, ADD, OVERWRITE, DROP, MAKE, CHANGE, MOVE, DROP_PINNED, HOLD = range(9)
"""Events of a copy. READ: it is read. ADD: a contribution joins others. OVERWRITE: it is written while it is
there. DROP, DROP_PINNED: it is deleted. MAKE: a run makes it on the host. CHANGE: a run changes it in place.
MOVE: a transfer makes it. HOLD: a collective that is an operation reads or makes it."""


class IterationTables(NamedTuple):
    """One iteration as rows.

    rows: shape (most, COLUMNS). seconds: shape (most, 3). events: see `event`. size: shape (moving tensors,
    3). counts: number of rows, without the last; of moving tensors; of DROP events. lanes, parts: see
    `Instance`.

    Filled in by `walk`: waits[first[r]:first[r + 1]] are the rows for which row r waits; below 0: rows of
    iterations before.
    """

    rows: Ints
    seconds: Floats
    events: Ints
    size: Ints
    counts: Ints
    lanes: Ints
    parts: Floats
    first: Ints
    waits: Ints


@inner
def empty_iteration(rows: int, events: int, moving: int, lanes: Ints, parts: Floats) -> IterationTables:
    """Return an empty iteration with room for so many; a row waits for one row of each queue at most."""
    return IterationTables(
        np.empty((rows + 1, COLUMNS), np.int64),
        np.empty((rows + 1, 3)),
        np.empty(events, np.int64),
        np.empty((moving, 3), np.int64),
        np.zeros(3, np.int64),
        lanes,
        parts,
        np.empty(rows + 2, np.int64),
        np.empty((len(lanes) + 1) * (rows + 1), np.int64),
    )


_KINDS, _MEMORIES = 9, MOST_MEMORIES


@inner
def event(kind: int, tensor: int, memory: int) -> int:
    """Return one number for an event of a moving tensor's copy."""
    # Mixed radix; the three functions below are its digits.
    return (tensor * _MEMORIES + memory) * _KINDS + kind


@inner
def kind_of(event: int) -> int:
    return event % _KINDS


@inner
def memory_of(event: int) -> int:
    return event // _KINDS % _MEMORIES


@inner
def tensor_of(event: int) -> int:
    return event // (_KINDS * _MEMORIES)


@inner
def put(
    iteration: IterationTables,
    row: int,
    queue: int,
    memory: int,
    demand: int,
    pinned: int,
    events_end: int,
    seconds: float,
    launch: float,
    turn: int,
    joined: bool = False,
    held: int = 0,
) -> None:
    """Write a row."""
    columns = iteration.rows[row]
    columns[QUEUE], columns[MEMORY] = queue, memory
    columns[DEMAND], columns[EVENTS_END], columns[PINNED_DEMAND] = demand, events_end, pinned
    columns[TURN], columns[JOINED], columns[HELD] = turn, joined, held
    iteration.seconds[row, RUN], iteration.seconds[row, LAUNCH] = seconds, launch
