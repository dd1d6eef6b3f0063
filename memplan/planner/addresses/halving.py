"""Ejection chains within capacities that halve the way to a target, above a strip for small copies.

Among large copies a small one would shift what is above it by a little, and leave gaps that nothing fits in.

    offset  ┌──────────────────────────────┐
            │  ▟▀▙  large copies  ▄▄▟▙  ▟▀ │   ejection chains
            ├──────────────────────────────┤
            │ ▖▗▘  small copies   ▘▝▖ ▗  ▘ │   first fit; it costs no more than it may
            └──────────────────────────────┘ step
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from .first_fit import first_fit
from .layout import Layout
from .lifetimes import Lifetimes
from .search import within

_ROUNDS, _TRIES = 30_000, 40
"""Rounds of one try, and tries, at most."""

_LONGER = 4
"""Factor of the rounds of the tries that come last."""


class Way(NamedTuple):
    """The way to halve, in bytes: from what is reached down to the target.

    none_below: bytes below which it is proven that there is no layout.
    """

    known: int
    target: int
    none_below: int


def above_a_strip(rows: Lifetimes, way: Way, effort: int, cost: int) -> Iterator[Ints]:
    """Yield ever better offsets, the last within the target if all goes well.

    effort: rounds times copies, at most. cost: bytes that the strip may cost.
    """
    small, strip = _strip(rows, cost)
    offsets = np.zeros(len(rows.size), np.int64)
    offsets[small] = strip.offsets
    lower = Way(*(bytes_ - strip.size for bytes_ in way))
    rounds = min(_ROUNDS, 200 * int((~small).sum()))
    for found in _halve(rows.of(~small), lower, rounds, effort, seed=0):
        offsets[~small] = strip.size + found
        yield offsets.copy()


def longer(rows: Lifetimes, way: Way, effort: int) -> Iterator[Ints]:
    """Yield ever better offsets, by longer tries with no strip."""
    rounds = _LONGER * min(_ROUNDS, 200 * len(rows.size))
    yield from _halve(rows, way, rounds, effort, seed=_TRIES)


def _halve(rows: Lifetimes, way: Way, rounds: int, effort: int, *, seed: int) -> Iterator[Ints]:
    """Yield ever better offsets. Half of the tries are at the target, the others at half of the way."""
    known, target, none_below = way
    if len(rows.size) == 0:
        return
    least = failed = max(target, int(rows.live().max()))
    unit = int(np.gcd.reduce(rows.size)) or 1  # so offsets are whole multiples of it, too
    for number in range(min(_TRIES, effort // (len(rows.size) * rounds))):
        if known <= max(least, none_below):
            return
        capacity = (least if number % 2 == 0 else (known + failed) // 2) // unit * unit
        found = None
        if capacity >= none_below:  # a try that is bound to fail is left out; the next are what they would be
            found = within(rows, capacity, rounds, seed + number, number // 2 % 2 == 0)
        if found is not None:
            # A failure is not a proof, so after a success capacities down to `least` are tried once more.
            known, failed = int((found + rows.size).max()), least
            yield found
        elif number % 2:
            failed = capacity


def _strip(rows: Lifetimes, cost: int) -> tuple[NDArray[np.bool_], Layout]:
    """Return the small copies, up to the largest size at which their strip costs no more than it may, and
    the strip's layout."""
    highest, sizes = int(rows.live().max(initial=0)) + cost, list[int]()
    for size in np.unique(rows.size).tolist():
        small = rows.size <= size
        if int(rows.of(small).live().max()) + int(rows.of(~small).live().max(initial=0)) > highest:
            break
        sizes.append(size)
    for size in reversed(sizes):
        small = rows.size <= size
        strip = Layout(rows.of(small), first_fit(rows.of(small)))
        if strip.size + int(rows.of(~small).live().max(initial=0)) <= highest:
            return small, strip
    nothing = np.zeros(len(rows.size), np.bool_)
    return nothing, Layout(rows.of(nothing), np.zeros(0, np.int64))
