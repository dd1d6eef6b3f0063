"""First fit: one copy after the other, each at the lowest offset where it meets none placed before.

Seven orders are tried; which is best differs from schedule to schedule. Sources: the orders by size, by
area and by start are those of Pisarchyk & Lee, Efficient Memory Management for Deep Neural Net Inference
(2020); those by what is resident alongside, of MiniMalloc (Moffitt, 2023).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...graphs.arrays import Ints
from ...graphs.compiled import compiled, inner
from .lifetimes import Lifetimes


def first_fit(rows: Lifetimes) -> Ints:
    """Return the offsets of the best of the orders."""
    return best_order(rows)[1]


def best_order(rows: Lifetimes) -> tuple[Ints, Ints]:
    """Return the best of the orders, and its offsets."""
    best, least = (np.zeros(0, np.int64), np.zeros(0, np.int64)), -1
    for order in _orders(rows):
        offsets = np.zeros(len(rows.size), np.int64)
        place(order, rows.size, rows.start, rows.end, rows.steps, offsets)
        size = int((offsets + rows.size).max(initial=0))
        if least < 0 or size < least:
            best, least = (order, offsets), size
    return best


def _orders(rows: Lifetimes) -> Iterator[Ints]:
    size, start = rows.size, rows.start
    span = rows.end - start
    concurrent = most_beside(rows)
    yield np.lexsort((start, -span, -size))
    yield np.lexsort((start, -size * span))
    yield np.lexsort((start, -size, -span))
    yield np.lexsort((-size, start))
    yield np.lexsort((start, -size, -concurrent))
    yield np.lexsort((start, -size * span, -concurrent))
    yield np.lexsort((start, -size, -span, -concurrent))


def most_beside(rows: Lifetimes) -> Ints:
    """Return per copy the most bytes that are resident in one step of its lifetime."""
    live = rows.live()
    # An arc may go on into the next iteration; one more, as `reduceat` takes no index past the end.
    twice = np.concatenate([live, live, live[:1]])
    ends = np.stack([rows.start, rows.end], axis=1).ravel()
    return np.maximum.reduceat(twice, ends)[::2] if len(ends) else np.zeros(0, np.int64)


@inner
def meet(s: int, e: int, t: int, f: int, steps: int) -> bool:
    """Tell whether two arcs of a cycle of `steps` steps share a step."""
    # In one iteration, or one arc meets the next iteration of the other.
    return (s < f and t < e) or s + steps < f or t + steps < e


@compiled
def place(order: Ints, size: Ints, start: Ints, end: Ints, steps: int, offsets: Ints) -> int:
    """Fill `offsets`. Returns how many placed copies were looked at."""
    looks = 0
    placed = np.empty(len(order), np.int64)  # by offset
    for count in range(len(order)):
        i = int(order[count])
        low, s, e = 0, int(start[i]), int(end[i])
        for at in range(count):
            j = int(placed[at])
            looks += 1
            # By offset: this one and all others lie above the gap.
            if offsets[j] >= low + size[i]:
                break
            if offsets[j] + size[j] > low and meet(s, e, int(start[j]), int(end[j]), steps):
                low = int(offsets[j] + size[j])
        offsets[i] = low
        at = count
        while at > 0 and offsets[placed[at - 1]] > low:
            placed[at] = placed[at - 1]
            at -= 1
        placed[at] = i
    return looks
