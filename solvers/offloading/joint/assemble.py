"""From the moves of a state to the steps of its schedule, compiled: prefetches placed, all merged by slot.

The same rules as planner/residence/transfers.py and planner/residence/residence.py, on arrays. `moves` are
what does not depend on where prefetches stand; `fetches` are the prefetches, each with the use that it is
for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled

MOVE = np.dtype([(name, np.int64) for name in ("slot", "rank", "order", "verb", "tensor", "where")])
FETCH = np.dtype(
    [
        *((name, np.int64) for name in ("tensor", "use", "earliest", "size", "shift")),
        ("seconds", np.float64),
        ("from_disk", np.bool_),
    ]
)
READ, PREFETCH = 4, 6
"""The ranks of what is fetched, among the steps before one run (planner/residence/residence.py)."""


@compiled
def place(
    fetches: Any,
    starts: NDArray[np.float64],
    curve: Ints,
    look_ahead: float,
    cap: float,
    moments: Ints,
) -> None:
    """moments: per fetch, that of the slot where it stands. fetches: by use; one with a shift stands so many
    slots later, out of the order of need. curve: changed."""
    turn, period = len(curve), starts[-1]
    due = np.inf
    for turns in range(1, -1, -1):
        for index in range(len(fetches) - 1, -1, -1):
            use = fetches[index].use
            due = min(due, starts[use // 2] + turns * period) - look_ahead * fetches[index].seconds
            if due < -period:
                moments[index] = -turn
                continue
            base = 0 if due >= 0 else -1
            moments[index] = base * turn + 2 * (np.searchsorted(starts, due - base * period, "right") - 1)
    before = -turn
    for index in range(len(fetches)):
        fetch = fetches[index]
        moment = moments[index]
        if fetch.shift:
            slots = turn // 2 + 1
            slot = moment // turn * slots + moment % turn // 2 + fetch.shift
            moment = slot // slots * turn + slot % slots * 2
        else:
            moment = max(moment, before)
        moment = min(max(moment, fetch.earliest), fetch.use - 1)
        moment += moment % turn % 2
        for tight in range(fetch.use - 2, moment - 1, -1):
            if curve[tight % turn] + fetch.size > cap:
                moment = min(tight + 1, fetch.use - 1)
                moment += moment % turn % 2
                break
        for covered in range(moment, fetch.use - 1):
            curve[covered % turn] += fetch.size
        moments[index] = moment
        if not fetch.shift:
            before = moment


@compiled
def merge(
    moves: Any,
    fetches: Any,
    moments: Ints,
    turn: int,
    ways: Ints,
    steps: Ints,
    starts: NDArray[np.uint8],
) -> int:
    """The schedule's steps and their number; starts: where tensors lie at first, completed by what is
    fetched in the turn before. moves: unused ones have a negative slot."""
    count = 0
    total = len(moves) + 2 * len(fetches)
    keys = np.empty(total, np.int64)
    rows = np.empty((total, 3), np.int64)
    for index in range(len(moves)):
        move = moves[index]
        if move.slot >= 0:
            keys[count] = ((move.slot * 8 + move.rank) << 34) + move.order
            rows[count, 0], rows[count, 1], rows[count, 2] = move.verb, move.tensor, move.where
            count += 1
    for index in range(len(fetches)):
        fetch, moment = fetches[index], moments[index]
        start = moment % turn
        order = start + fetch.use - moment
        if moment < 0:
            starts[fetch.tensor] |= 1
        if fetch.from_disk:
            keys[count] = ((start // 2 * 8 + READ) << 34) + order
            rows[count, 0], rows[count, 1], rows[count, 2] = 3, fetch.tensor, 1
            count += 1
        keys[count] = ((start // 2 * 8 + PREFETCH) << 34) + order
        rows[count, 0], rows[count, 1], rows[count, 2] = 3, fetch.tensor, 0
        count += 1
    order_of = np.argsort(keys[:count], kind="mergesort")
    filled, done = 0, 0
    for slot in range(len(ways) + 1):
        while done < count and keys[order_of[done]] >> 34 < (slot + 1) * 8:
            steps[filled] = rows[order_of[done]]
            filled += 1
            done += 1
        if slot < len(ways):
            steps[filled, 0], steps[filled, 1], steps[filled, 2] = 0, ways[slot], 0
            filled += 1
    return filled
