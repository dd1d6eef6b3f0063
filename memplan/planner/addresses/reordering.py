"""First fit in better and better orders: copies that end too high come earlier in the next order.

A round takes as long as one first fit, so this is what can be done for tens of thousands of copies. Source:
Joslin & Clements, Squeaky wheel optimization (1999).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...graphs.arrays import Ints
from .first_fit import place
from .lifetimes import Lifetimes

_ROUNDS = 200
"""Rounds, at most."""

_WORSE = 1.002
"""Factor by which a layout may be larger than the one before it, to be changed next."""

_TOO_HIGH = 0.999
"""Share of the best arena above which copies come earlier."""


def reorder(rows: Lifetimes, order: Ints, known: int, target: int, effort: int) -> Iterator[Ints]:
    """Yield ever better offsets until some are within `target` bytes.

    order: to begin with. known: bytes that are reached. effort: copies looked at, at most.
    """
    random, count, spent = np.random.default_rng(0), len(rows.size), 0
    best, current = known, -1
    position, ends = np.empty(count), np.zeros(count, np.int64)
    for _round in range(_ROUNDS):
        offsets = np.zeros(count, np.int64)
        spent += count + place(order, rows.size, rows.start, rows.end, rows.steps, offsets)
        size = int((offsets + rows.size).max(initial=0))
        if current < 0 or size <= current * _WORSE:
            current, ends = size, offsets + rows.size
            position[order] = np.arange(count)
        if size < best:
            best = size
            yield offsets
        if spent > effort or best <= target:
            return
        moved = position.copy()
        # All move by one factor: each before what it stood on, in the order that they have.
        moved[ends > max(target, int(best * _TOO_HIGH))] *= random.random()
        order = np.argsort(moved, kind="stable")
