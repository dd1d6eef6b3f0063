"""Addresses for a schedule: first fit, and searches if that is too large.

Copies that are always resident are at the bottom. For the others, one search after the other until the target
is reached, or proven to be out of reach:

- first fit in better orders (reordering.py), for any number of copies;
- complete searches within the target (restarts.py): they find a layout, or prove that there is none;
- ejection chains (search.py), and complete searches, within capacities that halve the way to the target.

For most tries of ejection chains a strip for small copies comes first: among large ones each would
shift what is above it by a little, and leave gaps that nothing fits in.

    offset  ┌──────────────────────────────┐
            │  ▟▀▙  large copies  ▄▄▟▙  ▟▀ │   ejection chains
            ├──────────────────────────────┤
            │ ▖▗▘  small copies   ▘▝▖ ▗  ▘ │   first fit; at most 0.5 % above what they need
            ├──────────────────────────────┤
            │  always there                │
            └──────────────────────────────┘ step
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ..schedule.schedule import Schedule
from .complete import FOUND, NONE
from .first_fit import first_fit
from .layout import Layout
from .lifetimes import Lifetimes, lifetimes
from .reordering import reorder
from .restarts import MOST, Restarts
from .search import within

EFFORT = 400_000_000
"""Looks at a copy that each of the searches may take: about 4 seconds."""

_REORDERING, _COMPLETE, _ATTEMPT = 1 / 8, 1 / 4, 1 / 80
"""Shares of the effort: better orders of first fit; the complete search within the target; one within another
capacity."""

_ROUNDS, _TRIES, _LONGER = 30_000, 40, 8
"""Rounds of one of the first tries of ejection chains; tries, at most; tries of one length."""

_MOST = 15_000
"""Copies, at most, for ejection chains: they need a byte for each two."""

_STRIP, _SIZES = 0.005, 40
"""Cost that a strip may have, as a share of the bound; largest sizes in it that are tried."""


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
    return common & -common


def lay_out(rows: Lifetimes, target: int = 0, effort: int = EFFORT) -> Layout:
    """Return a layout of no more than `target` bytes, or the smallest that is found."""
    best = Layout(rows, first_fit(rows))
    target = max(target, best.bound)
    if best.size <= target or effort == 0:
        return best
    always = rows.end - rows.start == rows.steps
    offsets = np.zeros(len(rows.size), np.int64)
    offsets[always] = np.cumsum(rows.size[always]) - rows.size[always]
    bottom, moving, least = int(rows.size[always].sum()), rows.of(~always), 0
    known, strip = best.size - bottom, int(_STRIP * best.bound)
    for found, at_least in _smaller_and_smaller(moving, target - bottom, known, effort, strip):
        least = max(least, bottom + at_least)
        if found is not None and bottom + int((found + moving.size).max()) < best.size:
            offsets[~always] = bottom + found
            best = Layout(rows, offsets.copy())
    return Layout(rows, best.offsets, least=least)


def _smaller_and_smaller(
    rows: Lifetimes, target: int, known: int, effort: int, strip: int
) -> Iterator[tuple[Ints | None, int]]:
    """Yield offsets, or None, each with bytes below which there is no layout.

    One of them is within `target` bytes if all goes well. known: bytes that are reached. strip:
    bytes that one may cost.
    """
    few, reordered = len(rows.size) <= _MOST, known
    for found in reorder(rows, target, int(effort * _REORDERING) if few else effort):
        reordered = min(reordered, int((found + rows.size).max()))
        yield found, 0
    unit = int(np.gcd.reduce(rows.size, initial=0)) or 1  # so offsets are whole multiples of it, too
    least = max(target // unit * unit, int(rows.live().max(initial=0)))
    if not few or reordered <= least:
        return
    restarts, searched = Restarts(rows) if len(rows.size) <= MOST else None, {least}
    if restarts is not None:
        tried = restarts.run(least, int(effort * _COMPLETE))
        if tried.end == FOUND:
            yield tried.offsets, 0
            return
        if tried.end == NONE:
            least += unit
            yield None, least
    # The halving starts from `known`: from less, few tries may all fail. So some layouts are no better.
    chains, failed, spent = _Chains(rows, strip), least, 0
    for number in range(_TRIES):
        longest = min(_ROUNDS, 200 * chains.large) * (1 + number // _LONGER)
        rounds = min(longest, (effort - spent) // max(1, chains.large))
        if known <= least or rounds < chains.large:
            return
        # Half of the tries are at the target. The others halve the way from what is reached to what is not.
        capacity = least if number % 2 == 0 else (known + failed) // 2 // unit * unit
        found = chains.within(capacity, rounds, number)
        spent += rounds * chains.large
        if found is None and restarts is not None and capacity not in searched:
            searched.add(capacity)
            tried = restarts.run(capacity, int(effort * _ATTEMPT))
            if tried.end == NONE:
                least = failed = capacity + unit
                yield None, least
                continue
            found = tried.offsets if tried.end == FOUND else None
        if found is not None:
            # A failure is not a proof, so after a success capacities down to `least` are tried once more.
            known, failed = int((found + rows.size).max()), least
            yield found, 0
        elif number % 2:
            failed = capacity


class _Chains:
    """Ejection chains, with a strip for small copies in most tries, if one costs little."""

    def __init__(self, rows: Lifetimes, cost: int) -> None:
        self._rows, (self._small, self._strip) = rows, _strip(rows, cost)
        self.large = int((~self._small).sum())

    def within(self, capacity: int, rounds: int, number: int) -> Ints | None:
        """Return offsets within a capacity, None if they are not found."""
        hardest, room = number // 2 % 2 == 0, capacity - self._strip.size
        large = ~self._small
        plain = number >= _LONGER * 2 and number // 2 % 4 >= 2
        if plain or not self._small.any() or self._rows.of(large).live().max(initial=0) > room:
            return within(self._rows, capacity, rounds, number, hardest)
        found = within(self._rows.of(large), room, rounds, number, hardest)
        if found is None:
            return None
        offsets = np.zeros(len(self._rows.size), np.int64)
        offsets[self._small], offsets[large] = self._strip.offsets, self._strip.size + found
        return offsets


def _strip(rows: Lifetimes, cost: int) -> tuple[NDArray[np.bool_], Layout]:
    """Return the small copies, up to the largest size at which their strip costs no more than it may, and
    the strip's layout."""
    nothing = np.zeros(len(rows.size), np.bool_)
    best = nothing, Layout(rows.of(nothing), np.zeros(0, np.int64))
    highest, sizes = int(rows.live().max(initial=0)) + cost, np.unique(rows.size)
    for size in sizes[:: -(-len(sizes) // _SIZES)].tolist():
        small = rows.size <= size
        few, others = rows.of(small), int(rows.of(~small).live().max(initial=0))
        if int(few.live().max()) + others > highest:
            break
        strip = Layout(few, first_fit(few))
        if strip.size + others <= highest:
            best = small, strip
    return best
