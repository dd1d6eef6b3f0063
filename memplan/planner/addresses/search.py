"""A layout within a given capacity, by ejection chains.

Copies wait in a queue. One is taken and goes where the copies that it meets weigh least; these are ejected
and wait once more. A copy that had to eject others gains weight, so what is hard to place is ejected less and
less, and the search does not go in circles. From time to time all that is placed falls, alternately down and
up, which joins small gaps. The idea of weights that grow is that of breakout and guided local search.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import compiled, inner
from .first_fit import meet
from .lifetimes import Lifetimes

Bits = NDArray[np.bool_]

_SETTLE = 300
"""Rounds between two falls."""


def within(rows: Lifetimes, capacity: int, rounds: int, seed: int, hardest: bool) -> Ints | None:
    """Return offsets within `capacity` bytes; None if they are not found.

    hardest: the copy of most weight is placed next, else any.
    """
    offsets, left = np.zeros(len(rows.size), np.int64), np.zeros(1, np.int64)
    # Large and long copies are hard to place: they begin with most weight.
    weight = rows.size * np.sqrt(rows.end - rows.start)
    weight /= weight.mean()
    eject(rows.size, rows.start, rows.end, rows.steps, capacity, rounds, seed, hardest, weight, offsets, left)
    return offsets if left[0] == 0 else None


@compiled
def eject(
    size: Ints,
    start: Ints,
    end: Ints,
    steps: int,
    capacity: int,
    rounds: int,
    seed: int,
    hardest: bool,
    weight: Floats,
    offsets: Ints,
    left: Ints,
) -> None:
    """Fill `offsets`; left[0]: how many copies have none when the rounds are over. `weight` grows."""
    np.random.seed(seed)
    count = len(size)
    concurrent = _beside(start, end, steps)
    tops = offsets + size
    queue, waiting = np.argsort(weight), count  # the heaviest are taken first
    low, high = np.empty(count, np.int64), np.empty(count, np.int64)  # what is placed, by offset and by top
    met_low, met_high = np.empty(count, np.int64), np.empty(count, np.int64)
    placed = 0
    for number in range(rounds):
        if waiting == 0:
            break
        if number > count and number % _SETTLE == 0:
            _settle(low, high, placed, size, offsets, tops, concurrent, capacity, number // _SETTLE % 2 == 1)
        place = waiting - 1
        # Before, the last of the queue is taken: the heaviest left, or the one ejected last.
        if number >= count:
            place = np.random.randint(waiting)
            if hardest:
                place = np.argmax(weight[queue[:waiting]])
        i = queue[place]
        waiting -= 1
        # The last one fills the gap.
        queue[place] = queue[waiting]

        lows = highs = 0
        for at in range(placed):
            if concurrent[i, low[at]]:
                met_low[lows] = low[at]
                lows += 1
            if concurrent[i, high[at]]:
                met_high[highs] = high[at]
                highs += 1
        offset, cost = _cheapest(
            int(size[i]), capacity, offsets, tops, weight, met_low, lows, met_high, highs
        )
        if cost > 0:
            weight[i] += 1
            for at in range(lows):
                j = met_low[at]
                if offsets[j] < offset + size[i] and offset < tops[j]:
                    _take_out(low, placed, offsets, j)
                    _take_out(high, placed, tops, j)
                    placed -= 1
                    queue[waiting] = j
                    waiting += 1
        offsets[i], tops[i] = offset, offset + size[i]
        _put(low, placed, offsets, i)
        _put(high, placed, tops, i)
        placed += 1
    left[0] = waiting


@inner
def _beside(start: Ints, end: Ints, steps: int) -> Bits:
    count = len(start)
    concurrent = np.zeros((count, count), np.bool_)
    for i in range(count):
        for j in range(i):
            concurrent[i, j] = concurrent[j, i] = meet(start[i], end[i], start[j], end[j], steps)
    return concurrent


@inner
def _cheapest(
    size: int,
    capacity: int,
    offsets: Ints,
    tops: Ints,
    weight: Floats,
    low: Ints,
    lows: int,
    high: Ints,
    highs: int,
) -> tuple[int, float]:
    """Return the offset at which the copies met weigh least, one of several by chance, and that weight.

    The weight is 0.0 if it meets nothing. low, high: what it may meet, by offset and by top. One is met from
    a byte above `offset - size` up to a byte below its top; so the weight falls at tops only, and rises just
    above the others.
    """
    last = capacity - size
    entering = leaving = 0
    cost = 0.0
    while entering < lows and offsets[low[entering]] < size:
        cost += float(weight[low[entering]])
        entering += 1
    best, least, ties = 0, cost, 1
    met = entering
    while met > 0:
        # From one byte above this offset on, that copy is met.
        begins = int(offsets[low[entering]]) - size if entering < lows else capacity
        ends = int(tops[high[leaving]]) if leaving < highs else capacity
        at = min(begins, ends)
        if at > last:
            break
        # Those that end here first: at `at` itself they are met no more, and those that begin not yet.
        while leaving < highs and tops[high[leaving]] == at:
            cost -= float(weight[high[leaving]])
            met -= 1
            leaving += 1
        if met == 0:
            return at, 0.0
        if cost < least - 1e-9:
            best, least, ties = at, cost, 1
        elif cost <= least + 1e-9:
            ties += 1
            # Each of the ties with the same probability, without a list of them.
            if np.random.randint(ties) == 0:
                best = at
        while entering < lows and offsets[low[entering]] - size == at:
            cost += float(weight[low[entering]])
            met += 1
            entering += 1
    if met == 0:
        return 0, 0.0
    return best, least


@inner
def _settle(
    low: Ints,
    high: Ints,
    placed: int,
    size: Ints,
    offsets: Ints,
    tops: Ints,
    concurrent: Bits,
    capacity: int,
    upwards: bool,
) -> None:
    """Let all placed copies fall, one after the other: down to 0, or up to the capacity."""
    fallen = np.empty(placed, np.int64)
    for number in range(placed):
        i = high[placed - 1 - number] if upwards else low[number]
        lowest = 0  # from below, or from above
        for at in range(number):
            j = fallen[at]
            bottom = capacity - tops[j] if upwards else offsets[j]
            if bottom >= lowest + size[i]:
                break
            if concurrent[i, j]:
                lowest = max(lowest, bottom + size[j])
        fallen[number] = i
        offsets[i] = capacity - lowest - size[i] if upwards else lowest
        tops[i] = offsets[i] + size[i]
        at = number
        while at > 0 and (capacity - tops[fallen[at - 1]] if upwards else offsets[fallen[at - 1]]) > lowest:
            fallen[at] = fallen[at - 1]
            at -= 1
        fallen[at] = i
    low[:placed] = fallen[np.argsort(offsets[fallen])]
    high[:placed] = fallen[np.argsort(tops[fallen])]


@inner
def _put(sorted_: Ints, count: int, key: Ints, i: int) -> None:
    at = count
    while at > 0 and key[sorted_[at - 1]] > key[i]:
        sorted_[at] = sorted_[at - 1]
        at -= 1
    sorted_[at] = i


@inner
def _take_out(sorted_: Ints, count: int, key: Ints, i: int) -> None:
    at, above = 0, count
    while at < above:
        middle = (at + above) // 2
        if key[sorted_[middle]] < key[i]:
            at = middle + 1
        else:
            above = middle
    # Several may have the same key.
    while sorted_[at] != i:
        at += 1
    for place in range(at, count - 1):
        sorted_[place] = sorted_[place + 1]
