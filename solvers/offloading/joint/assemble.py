"""From the moves of a state to the steps of its schedule, compiled: prefetches placed, all merged by slot.

The same rules as planner/residence/transfers.py and planner/residence/residence.py, on arrays. `moves` are
what does not depend on where prefetches stand; `fetches` are the prefetches, each with the use that it is
for. Rows of either with a negative slot or use are not used. Near-linear in all these and the runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Floats, Ints
from ....graphs.compiled import compiled, inner

MOVE = np.dtype([(name, np.int64) for name in ("slot", "rank", "order", "verb", "tensor", "where")])
FETCH = np.dtype(
    [
        *((name, np.int64) for name in ("tensor", "use", "earliest", "size", "shift", "read_shift")),
        ("seconds", np.float64),
        ("read_seconds", np.float64),
        ("from_disk", np.bool_),
    ]
)
READ, PREFETCH = 4, 6
"""The ranks of what is fetched, among the steps before one run (planner/residence/residence.py)."""


@compiled
def assemble(
    moves: Any,
    fetches: Any,
    ways: Ints,
    starts: Floats,
    curves: tuple[Ints, Ints],
    caps: tuple[float, float],
    look_ahead: float,
    initial: NDArray[np.uint8],
    steps: Ints,
) -> int:
    """Fill `steps`: rows (verb, way or tensor, memory); their number. ways: per run, negative where it is
    absent. starts: of runs, in seconds. curves: bytes on the device and on the host by moment, with every
    fetch just before its use; caps: what early ones keep within. initial: where tensors lie at first,
    completed by what is fetched in the turn before."""
    order = _in_order_of_need(fetches, len(curves[0]))
    moments = np.empty((len(order), 2), np.int64)
    _want(fetches, order, starts, look_ahead, len(curves[0]), moments)
    _place(fetches, order, (curves[0].copy(), curves[1].copy()), caps, moments)
    return _merge(moves, fetches, order, moments, len(curves[0]), ways, initial, steps)


@inner
def _in_order_of_need(fetches: Any, turn: int) -> Ints:
    """The rows in use, by use, then by tensor."""
    count, first = 0, np.zeros(turn + 1, np.int64)
    for row in range(len(fetches)):
        if fetches[row].use >= 0:
            first[fetches[row].use + 1] += 1
            count += 1
    for moment in range(turn):
        first[moment + 1] += first[moment]
    rows, keys = np.empty(count, np.int64), np.empty(len(fetches), np.int64)
    for row in range(len(fetches)):
        if fetches[row].use >= 0:
            keys[row] = fetches[row].tensor
            rows[first[fetches[row].use]] = row
            first[fetches[row].use] += 1
    begin = 0
    for moment in range(turn):  # each now begins where the next did
        _sort(rows, keys, begin, first[moment])
        begin = first[moment]
    return rows


@inner
def _want(fetches: Any, order: Ints, starts: Floats, look_ahead: float, turn: int, moments: Ints) -> None:
    """moments: per fetch those of the slots where the copy up and the read from the disk should stand: each
    queue served backwards in time, twice around the cycle. order: by use."""
    due = due_read = np.inf
    for turns in range(1, -1, -1):
        for index in range(len(order) - 1, -1, -1):
            fetch = fetches[order[index]]
            due = min(due, starts[fetch.use // 2] + turns * starts[-1]) - look_ahead * fetch.seconds
            if fetch.from_disk:
                due_read = min(due_read, due) - look_ahead * fetch.read_seconds
            _put_slot_before(due, starts, turn, moments[index, 0:1])
            _put_slot_before(due_read, starts, turn, moments[index, 1:2])


@inner
def _put_slot_before(due: float, starts: Floats, turn: int, moment: Ints) -> None:
    """moment: takes that of the last slot that starts at or before a time within the last turn and this."""
    if due < -starts[-1]:
        moment[0] = -turn
        return
    base = 0 if due >= 0 else -1
    moment[0] = base * turn + 2 * (np.searchsorted(starts, due - base * starts[-1], "right") - 1)


@inner
def _place(
    fetches: Any, order: Ints, curves: tuple[Ints, Ints], caps: tuple[float, float], moments: Ints
) -> None:
    """moments: those that are wanted become those that the memories have room for. A fetch with a shift
    stands so many slots later, out of the order of need; a read from the disk likewise. What is read lies on
    the host from then to its use. curves: changed."""
    device, host = curves
    turn = len(device)
    before = before_read = -turn
    for index in range(len(order)):
        fetch = fetches[order[index]]
        moment = _fitting(fetch, _shifted(moments[index, 0], before, fetch.shift, turn), device, caps[0])
        if fetch.from_disk:
            read = _shifted(moments[index, 1], before_read, fetch.read_shift, turn)
            read = _fitting(fetch, min(read, moment), host, caps[1])
            moment = max(moment, read)
            moments[index, 1] = read
            if not fetch.read_shift:
                before_read = read
            _occupy(host, read, fetch.use - 1, fetch.size)
        _occupy(device, moment, fetch.use - 1, fetch.size)
        moments[index, 0] = moment
        if not fetch.shift:
            before = moment


@inner
def _shifted(moment: int, before: int, shift: int, turn: int) -> int:
    """So many slots later; not before the one in front of it where it keeps the order."""
    if not shift:
        return max(moment, before)
    slots = turn // 2 + 1
    slot = moment // turn * slots + moment % turn // 2 + shift
    return slot // slots * turn + slot % slots * 2


@inner
def _fitting(fetch: Any, moment: int, curve: Ints, cap: float) -> int:
    """The first slot from that moment on, and not before the copy can be fetched, from which it fits."""
    turn = len(curve)
    moment = min(max(moment, fetch.earliest), fetch.use - 1)
    moment += moment % turn % 2
    tight = _last_above(curve, moment, fetch.use - 1, cap - fetch.size)
    if tight >= moment:
        moment = min(tight + 1, fetch.use - 1)
        moment += moment % turn % 2
    return moment


@inner
def _occupy(curve: Ints, start: int, end: int, size: int) -> None:
    for low, high in _within(start, end, len(curve)):
        for moment in range(low, high):
            curve[moment] += size


@inner
def _last_above(curve: Ints, start: int, end: int, limit: float) -> int:
    """The last moment from `start` to `end` (excluded) with more than that, or start − 1."""
    turn = len(curve)
    (low, high), (after, last) = _within(start, end, turn)
    for moment in range(last - 1, after - 1, -1):
        if curve[moment] > limit:
            return end - (last - moment)
    for moment in range(high - 1, low - 1, -1):
        if curve[moment] > limit:
            return start + moment - low
    return start - 1


@inner
def _within(start: int, end: int, turn: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two parts of one turn: that in the turn of `start`, and what goes beyond it, if anything. It is less
    than a turn."""
    low = start % turn
    high = low + max(0, end - start)
    return (low, min(high, turn)), (0, max(high - turn, 0))


@inner
def _merge(
    moves: Any,
    fetches: Any,
    order: Ints,
    moments: Ints,
    turn: int,
    ways: Ints,
    initial: NDArray[np.uint8],
    steps: Ints,
) -> int:
    """All steps, slot by slot; within one by rank, then by the moment that asks for them, then by tensor."""
    most, slots = len(moves) + 2 * len(order), len(ways) + 1
    keys, slot_of, rows = np.empty(most, np.int64), np.empty(most, np.int64), np.empty((most, 3), np.int64)
    count = 0
    for index in range(len(moves)):
        move = moves[index]
        if move.slot >= 0:
            slot_of[count], keys[count] = move.slot, _key(move.rank, move.order, move.tensor)
            rows[count, 0], rows[count, 1], rows[count, 2] = move.verb, move.tensor, move.where
            count += 1
    for index in range(len(order)):
        fetch = fetches[order[index]]
        if moments[index, 0] < 0:
            initial[fetch.tensor] |= 1
        for memory in range(2 if fetch.from_disk else 1):
            moment = moments[index, memory]
            start = moment % turn
            slot_of[count] = start // 2
            keys[count] = _key(READ if memory else PREFETCH, start + fetch.use - moment, fetch.tensor)
            rows[count, 0], rows[count, 1], rows[count, 2] = 3, fetch.tensor, memory
            count += 1
    first = np.zeros(slots + 1, np.int64)
    for index in range(count):
        first[slot_of[index] + 1] += 1
    for slot in range(slots):
        first[slot + 1] += first[slot]
    sorted_rows, filled = np.empty(count, np.int64), first.copy()
    for index in range(count):
        sorted_rows[filled[slot_of[index]]] = index
        filled[slot_of[index]] += 1
    length = 0
    for slot in range(slots):
        _sort(sorted_rows, keys, first[slot], first[slot + 1])
        for place in range(first[slot], first[slot + 1]):
            for column in range(3):
                steps[length, column] = rows[sorted_rows[place], column]
            length += 1
        if slot < len(ways) and ways[slot] >= 0:
            steps[length, 0], steps[length, 1], steps[length, 2] = 0, ways[slot], 0
            length += 1
    return length


@inner
def _key(rank: int, order: int, tensor: int) -> int:
    return (rank << 32 | order) << 26 | tensor


@inner
def _sort(rows: Ints, keys: Ints, begin: int, end: int) -> None:
    """Part of the rows by their keys, which differ: by insertion, over great distances first where they are
    many (D. L. Shell, CACM 2, 1959)."""
    distance = 1
    while distance < (end - begin) // 6:
        distance = 3 * distance + 1
    while distance:
        for index in range(begin + distance, end):
            row, place = rows[index], index
            while place >= begin + distance and keys[rows[place - distance]] > keys[row]:
                rows[place] = rows[place - distance]
                place -= distance
            rows[place] = row
        distance //= 3
