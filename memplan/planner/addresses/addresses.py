"""Addresses for a schedule: first fit, and searches if that is too large.

Copies that are always resident are at the bottom. For the others, one search after the other until the target
is reached, or proven to be out of reach; the smallest result is taken:

- first fit in better orders (reordering.py), for any number of copies;
- complete searches within the target (restarts.py): they find a layout, or prove that there is none;
- ejection chains (halving.py) within capacities that halve the way to the target. What the others find does
  not change their course, so none of them makes an arena larger;
- complete searches within capacities that halve the rest of the way, and longer ejection chains.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...graphs.arrays import Ints
from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ..schedule.schedule import Schedule
from .complete import FOUND, NONE, Tried
from .first_fit import best_order
from .halving import Way, above_a_strip, longer
from .layout import Layout
from .lifetimes import Lifetimes, lifetimes
from .reordering import reorder
from .restarts import MOST, Restarts

EFFORT = 400_000_000
"""Looks at a copy that ejection chains may take: about 4 seconds. The other searches take shares of it."""

_REORDERING, _COMPLETE, _DEEP, _HALVING, _LONGER = 1 / 8, 3 / 16, 3 / 16, 1 / 32, 1 / 32
"""Shares: better orders of first fit; complete searches within the target, many short ones of steps and of
sections each, and a long one; those within other capacities, together; longer ejection chains."""

_HALVINGS = 4
"""Complete searches within other capacities that reach no end, at most."""

_FEW, _LARGE = 13_000, 3
"""Copies above which ejection chains have no time for a try; the factor of their effort that gives some."""

_STRIP = 0.005
"""Cost that a strip for small copies may have, as a share of the bound."""


def rows_of(
    graph: Graph,
    schedule: Schedule,
    memory: int = Memory.DEVICE,
    *,
    budget: int | None = None,
    machine: Machine | None = None,
) -> Lifetimes:
    """Return the copies to lay out: their lifetimes, with sizes in whole blocks.

    A copy takes the same address in each iteration, so the one of the iteration before is cut off by then.
    """
    rows = lifetimes(graph, schedule, memory, budget=budget, machine=machine)
    return rows.cut().rounded(block_of(graph))


def block_of(graph: Graph) -> int:
    """Return the block size of addresses, at most 512 bytes: the largest power of two that divides all sizes.

    Workspaces are measured by what kernels request, and are rounded up to it.
    """
    common = int(np.gcd.reduce(graph.tensors.bytes, initial=512))
    # The lowest bit that is set: the largest power of two that divides it.
    return common & -common


def lay_out(rows: Lifetimes, target: int = 0, effort: int = EFFORT) -> Layout:
    """Return a layout of no more than `target` bytes, or the smallest that is found."""
    order, offsets = best_order(rows)
    best = Layout(rows, offsets)
    target = max(target, best.bound)
    if best.size <= target or effort == 0:
        return best
    always = rows.end - rows.start == rows.steps
    offsets = np.zeros(len(rows.size), np.int64)
    # Always resident, so they lie one on another, without gaps.
    offsets[always] = np.cumsum(rows.size[always]) - rows.size[always]
    bottom = int(rows.size[always].sum())
    order = (np.cumsum(~always) - 1)[order[~always[order]]]  # of the others, numbered without these
    searches = _Searches(rows.of(~always), target - bottom, best.size - bottom)
    for found in searches.run(order, effort, int(_STRIP * best.bound)):
        if (size := int((found + searches.rows.size).max())) < searches.known:
            searches.known, offsets[~always] = size, bottom + found
            best = Layout(rows, offsets.copy())
        # Small enough, or proven to be the smallest.
        if searches.known <= searches.least:
            break
    return Layout(rows, best.offsets, least=bottom + searches.none_below)


class _Searches:
    """One search after the other for small layouts of copies, none of them always resident.

    target: bytes that are small enough. known: bytes that are reached. none_below: bytes below which it is
    proven that there is no layout.
    """

    def __init__(self, rows: Lifetimes, target: int, known: int) -> None:
        self.rows, self.target, self.known = rows, target, known
        self.none_below = int(rows.live().max(initial=0))
        self._unit = int(np.gcd.reduce(rows.size, initial=0)) or 1  # offsets are whole multiples of it, too

    @property
    def least(self) -> int:
        """Return the bytes below which nothing is sought."""
        # Layouts have whole units: a target between two is as good as the lower one.
        return max(self.target // self._unit * self._unit, self.none_below)

    def run(self, order: Ints, effort: int, strip: int) -> Iterator[Ints]:
        """Yield offsets, until none are asked for. order: of first fit's. strip: bytes that one may cost."""
        first, count = self.known, len(self.rows.size)
        share = _REORDERING if count <= _FEW else 1
        yield from reorder(self.rows, order, first, self.target, int(effort * share))
        effort *= 1 if count <= _FEW else _LARGE
        restarts = Restarts(self.rows) if count <= MOST else None
        if restarts is not None:
            least, sections = self.least, self.rows.in_sections()
            yield from self._end(restarts.run(least, int(effort * _COMPLETE)), least)
            # The same problem, but orders by length and area differ; schedules count many steps between two.
            if self.least == least < self.known and sections.steps < self.rows.steps:
                yield from self._end(Restarts(sections).run(least, int(effort * _COMPLETE)), least)
            if self.least == least < self.known:
                yield from self._end(restarts.deep(least, int(effort * _DEEP)), least)
            if self.known <= self.least:
                return
        yield from above_a_strip(self.rows, Way(first, self.target, self.none_below), effort, strip)
        if restarts is not None:
            yield from self._halve(restarts, int(effort * _HALVING / _HALVINGS))
        yield from longer(self.rows, Way(self.known, self.target, self.none_below), int(effort * _LONGER))

    def _halve(self, restarts: Restarts, effort: int) -> Iterator[Ints]:
        failed, unended = self.least, 0
        while self.known > self.least and unended < _HALVINGS:
            known, none_below = self.known, self.none_below
            capacity = (known + max(failed, self.least)) // 2 // self._unit * self._unit
            yield from self._end(restarts.run(capacity, effort), capacity)
            # Neither found nor refuted within the effort: try larger capacities.
            if (known, none_below) == (self.known, self.none_below):
                failed, unended = capacity, unended + 1

    def _end(self, tried: Tried, capacity: int) -> Iterator[Ints]:
        if tried.end == FOUND:
            yield tried.offsets
        elif tried.end == NONE:
            # No layout within `capacity`, so the next possible size is a unit more.
            self.none_below = capacity + self._unit
