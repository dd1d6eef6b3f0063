"""Places the fetches of a schedule and merges all its steps by slot, compiled.

The fetches keep the order in which they are needed, so an early one never delays a later one but by the
memory it takes. For a look-ahead of k, the copies on a link take k times as long as they do:

    wanted slots   the latest with which a copy holds up no use in this iteration and the next, if each link
                   is first in first out, no run waits, and all other copies have begun as early as they can
    placed slots   of all that keep the order of need, are no earlier than wanted or than the copy can be
                   fetched, and keep within the caps wherever a copy is there ahead of its use: those in which
                   the first fetch is earliest, then the second, and so on

Placing them one by one gives these: a fetch just before its use, which takes no memory ahead, is always one
of the choices that the later ones have. Near-linear in steps and runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import compiled, inner
from ..schedule.schedule import Verb
from .tensor_transfers import AS_EARLY_AS_WANTED, FETCH_KINDS

COMPUTE, PREFETCH = int(Verb.COMPUTE), int(Verb.PREFETCH)


@compiled
def assemble(
    moves: Any,
    fetches: Any,
    variants: Ints,
    starts: Floats,
    curves: Ints,
    caps: Floats,
    look_ahead: float,
    initial: NDArray[np.uint8],
    steps: Ints,
) -> int:
    """Fill `steps` with the schedule's; their number.

    moves, fetches: rows MOVE and of `fetch_type`; those with a negative slot or use are not used.
    variants: per run the number that stands for it in `steps`; negative if it does not take place.
    starts: seconds at which runs start if nothing waits; then the end of the last.
    curves: bytes by memory and moment, with every fetch just before its use. caps: bytes per memory that
    early fetches keep within. Both for the memories that fetches arrive in: all but the last.
    look_ahead: how many times its own duration a copy is started ahead.
    initial: per tensor the memories in which it starts, as bits; completed by what is fetched in the
    iteration before its use.
    steps: rows (verb, variant or tensor, memory), at least one per run and move, and one per hop and fetch.
    """
    period = curves.shape[1]
    order = _order_by_need(fetches, period)
    moments = np.empty((len(order), len(curves)), np.int64)
    _find_wanted_slots(fetches, order, starts, look_ahead, period, moments)
    _place(fetches, order, curves.copy(), caps, moments)
    return _merge(moves, fetches, order, moments, period, variants, initial, steps)


@inner
def _order_by_need(fetches: Any, period: int) -> Ints:
    """Return the rows in use, sorted by use, then by tensor."""
    count, first = 0, np.zeros(period + 1, np.int64)
    for row in range(len(fetches)):
        if fetches[row].use >= 0:
            first[fetches[row].use + 1] += 1
            count += 1
    for moment in range(period):
        first[moment + 1] += first[moment]
    rows, keys = np.empty(count, np.int64), np.empty(len(fetches), np.int64)
    for row in range(len(fetches)):
        if fetches[row].use >= 0:
            keys[row] = fetches[row].tensor
            rows[first[fetches[row].use]] = row
            first[fetches[row].use] += 1
    begin = 0
    for moment in range(period):  # each now begins where the next did
        _sort(rows, keys, begin, first[moment])
        begin = first[moment]
    return rows


@inner
def _find_wanted_slots(
    fetches: Any, order: Ints, starts: Floats, look_ahead: float, period: int, moments: Ints
) -> None:
    """Fill `moments` with those of the wanted slots, per fetch and hop.

    Each link serves its queue backwards in time, twice around the iteration: the second time it knows what
    the next iteration's first fetches need. order: by use.
    """
    # Seconds by link: when it must have begun all copies that are needed later.
    due = np.full(moments.shape[1], np.inf)
    for iterations in range(1, -1, -1):
        for index in range(len(order) - 1, -1, -1):
            fetch = fetches[order[index]]
            needed = starts[fetch.use // 2] + iterations * starts[-1]
            for hop in range(fetch.source):
                due[hop] = min(due[hop], needed) - look_ahead * fetch.seconds[hop]
                moments[index, hop] = _last_slot_by(due[hop], starts, period)
                # The copy that feeds this one must end when this one begins.
                needed = due[hop]


@inner
def _last_slot_by(due: float, starts: Floats, period: int) -> int:
    """Return the moment of the last slot that starts by a time, of this iteration or the one before.

    If none does, that of the first.
    """
    if due < -starts[-1]:
        return -period
    base = 0 if due >= 0 else -1
    # "right": a run that starts at that very time is still in time.
    begun = int(np.searchsorted(starts, float(due - base * starts[-1]), "right"))
    return base * period + 2 * (begun - 1)


@inner
def _place(fetches: Any, order: Ints, curves: Ints, caps: Floats, moments: Ints) -> None:
    """Move `moments` from the wanted slots to the placed ones. curves: changed.

    A fetch with a shift comes so many slots later, one with a moment at that moment; neither holds up those
    that keep the order. What is read from a memory is in the one above from then to its use.
    """
    period = curves.shape[1]
    # The moment of the latest fetch so far, by memory: the order of need is kept.
    before = np.full(len(curves), -period)
    for index in range(len(order)):
        fetch = fetches[order[index]]
        latest, is_given = fetch.use - 1, False
        for hop in range(fetch.source):
            # The last copy of the chain comes first here: those that feed it come before it,
            if fetch.moment[hop] != AS_EARLY_AS_WANTED:
                moments[index, hop] = fetch.moment[hop]
            else:
                moment = moments[index, hop]
                if fetch.shift[hop]:
                    moment = _slots_later(moment, fetch.shift[hop], period)
                else:
                    moment = max(moment, before[hop])
                moment = _first_that_fits(fetch, min(moment, latest), curves[hop], caps[hop])
                moments[index, hop] = min(moment, latest) if is_given else moment
            latest, is_given = moments[index, hop], fetch.moment[hop] != AS_EARLY_AS_WANTED
        for hop in range(fetch.source - 1, -1, -1):
            # unless their memory holds them up: then it follows them.
            is_free = fetch.moment[hop] == AS_EARLY_AS_WANTED
            if is_free and hop + 1 < fetch.source:
                moments[index, hop] = max(moments[index, hop], moments[index, hop + 1])
            if is_free and not fetch.shift[hop]:
                before[hop] = moments[index, hop]
            _occupy(curves[hop], moments[index, hop], fetch.use - 1, fetch.size)


@inner
def _slots_later(moment: int, shift: int, period: int) -> int:
    """Return the moment so many slots later."""
    # 2 n + 1 moments have n + 1 slots: one more than a half.
    slots = period // 2 + 1
    slot = moment // period * slots + moment % period // 2 + shift
    return slot // slots * period + slot % slots * 2


@inner
def _first_that_fits(fetch: Any, moment: int, curve: Ints, cap: float) -> int:
    """Return the first slot from `moment` on in which the copy can be fetched and has memory up to its
    use."""
    period = len(curve)
    moment = min(max(moment, fetch.earliest), fetch.use - 1)
    moment += moment % period % 2
    # After the last moment without room it has room up to its use.
    tight = _last_above(curve, moment, fetch.use - 1, cap - fetch.size)
    if tight >= moment:
        moment = min(tight + 1, fetch.use - 1)
        moment += moment % period % 2
    return moment


@inner
def _occupy(curve: Ints, start: int, end: int, size: int) -> None:
    for low, high in _wrapped(start, end, len(curve)):
        for moment in range(low, high):
            curve[moment] += size


@inner
def _last_above(curve: Ints, start: int, end: int, limit: float) -> int:
    """Return the last moment from `start` to `end` (excluded) with more than that, or start − 1."""
    (low, high), (after, last) = _wrapped(start, end, len(curve))
    for moment in range(last - 1, after - 1, -1):
        if curve[moment] > limit:
            return end - (last - moment)
    for moment in range(high - 1, low - 1, -1):
        if curve[moment] > limit:
            return start + moment - low
    return start - 1


@inner
def _wrapped(start: int, end: int, period: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Split a range of moments at the iteration's end: the range in the iteration of `start`, and the rest.

    From start to end is less than an iteration.
    """
    low = start % period
    high = low + max(0, end - start)
    return (low, min(high, period)), (0, max(high - period, 0))


@inner
def _merge(
    moves: Any,
    fetches: Any,
    order: Ints,
    moments: Ints,
    period: int,
    variants: Ints,
    initial: NDArray[np.uint8],
    steps: Ints,
) -> int:
    """Fill `steps` slot by slot, each by kind, then by the moment that asks for them, then by tensor."""
    most, slots = len(moves) + moments.shape[1] * len(order), len(variants) + 1
    keys, slot_of, rows = np.empty(most, np.int64), np.empty(most, np.int64), np.empty((most, 3), np.int64)
    count = 0
    for index in range(len(moves)):
        move = moves[index]
        if move.slot >= 0:
            slot_of[count], keys[count] = move.slot, _key(move.kind, move.order, move.tensor, move.where)
            rows[count, 0], rows[count, 1], rows[count, 2] = move.verb, move.tensor, move.where
            count += 1
    for index in range(len(order)):
        fetch = fetches[order[index]]
        for hop in range(fetch.source):
            moment = moments[index, hop]
            # Fetched in the iteration before: the tensor starts there.
            if moment < 0:
                initial[fetch.tensor] |= 1 << hop
            start = moment % period
            slot_of[count] = start // 2
            # The use's moment, counted in the iteration in which the fetch stands.
            keys[count] = _key(FETCH_KINDS[hop], start + fetch.use - moment, fetch.tensor, hop)
            rows[count, 0], rows[count, 1], rows[count, 2] = PREFETCH, fetch.tensor, hop
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
        if slot < len(variants) and variants[slot] >= 0:
            steps[length, 0], steps[length, 1], steps[length, 2] = COMPUTE, variants[slot], 0
            length += 1
    return length


@inner
def _key(kind: int, order: int, tensor: int, memory: int) -> int:
    """Return a key that sorts by kind, order, tensor, memory.

    Below 16, 2³⁰, 2²⁶ and 8 they fill 63 bits. No two steps of a slot have the same key, so no sort can leave
    them in either order.
    """
    return ((kind << 30 | order) << 26 | tensor) << 3 | memory


@inner
def _sort(rows: Ints, keys: Ints, begin: int, end: int) -> None:
    """Sort rows[begin:end] by their keys, which differ: by insertion, over great distances first if they are
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
