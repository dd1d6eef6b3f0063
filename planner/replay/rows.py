"""One turn as rows: what takes a queue, in list order, and what happens to copies before it.

A row is a run or a transfer. Only copies of *moving* tensors are told apart, those that some transfer or some
run on the host touches; all other tensors are bytes on the device. Deletes stand with the row behind them;
a last row, without a queue, takes those at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import compiled

QUEUE, MEMORY, KEPT, TRANSIENT, FREED, EVENTS_END = range(6)
"""The columns of a row. KEPT, TRANSIENT: bytes allocated in MEMORY, and of these the ones that go with the
row's end. FREED: bytes of the device that go before the row. EVENTS_END: of its events in the flat list."""

READ, OVERWRITE, DROP, ADD, MAKE, CHANGE, MOVE = range(7)
"""Events of a copy. READ: it is read. OVERWRITE: it is written while it is there. DROP: it is deleted. ADD: a
contribution joins others. MAKE: a run makes it. CHANGE: a run changes it in place. MOVE: a transfer makes it.
MAKE is told of runs on the host only: nobody waits for one on the device."""


class Turn(NamedTuple):
    """rows: shape (most, 6). seconds: per row. events: 3 · 8 · tensor + 8 · memory + kind. size: bytes per
    moving tensor. counts: of rows, without the last; of moving tensors; of DROP events.

    Filled by `walk`: waits[first[r]:first[r + 1]] are the rows for which row r waits, below 0: of turns
    before.
    """

    rows: Ints
    seconds: Floats
    events: Ints
    size: Ints
    counts: Ints
    first: Ints
    waits: Ints


@compiled
def empty_turn(rows: int, events: int, moving: int) -> Turn:
    """With room for so many."""
    return Turn(
        np.empty((rows + 1, 6), np.int64),
        np.empty(rows + 1),
        np.empty(events, np.int64),
        np.empty(moving, np.int64),
        np.zeros(3, np.int64),
        np.empty(rows + 2, np.int64),
        np.empty(5 * (rows + 1), np.int64),
    )


@compiled
def event(kind: int, tensor: int, memory: int) -> int:
    return (3 * tensor + memory) * 8 + kind
