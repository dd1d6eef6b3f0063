"""Addresses for a schedule: first fit, and a search if that is too large.

Copies that are always resident are at the bottom. Above comes a strip for small copies: among large ones each
would shift what is above it by a little, and leave gaps that nothing fits in. Above the strip is the rest:

    offset  ┌──────────────────────────────┐
            │  ▟▀▙  large copies  ▄▄▟▙  ▟▀ │   first fit, then ejection chains (search.py)
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
from .first_fit import first_fit
from .layout import Layout
from .lifetimes import Lifetimes, lifetimes
from .search import within

EFFORT = 400_000_000
"""Rounds times copies that a search may take: about 4 seconds."""

_ROUNDS, _TRIES = 30_000, 40
"""Rounds of one try, and tries, at most."""

_STRIP = 0.005
"""Cost that a strip may have, as a share of the bound."""


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
    if best.size <= target:
        return best
    always = rows.end - rows.start == rows.steps
    offsets = np.zeros(len(rows.size), np.int64)
    offsets[always] = np.cumsum(rows.size[always]) - rows.size[always]
    min_memory = int(rows.size[always].sum())
    small, strip = _strip(rows, ~always, best.bound)
    offsets[small] = min_memory + strip.offsets
    min_memory += strip.size
    large = ~(always | small)
    for found in _smaller_and_smaller(rows.of(large), target - min_memory, best.size - min_memory, effort):
        offsets[large] = min_memory + found
        best = Layout(rows, offsets.copy())
    return best


def _strip(rows: Lifetimes, among: NDArray[np.bool_], bound: int) -> tuple[NDArray[np.bool_], Layout]:
    """Return the small copies, up to the largest size at which their strip costs little, and the strip's
    layout."""
    nothing = np.zeros(len(rows.size), np.bool_)
    best = nothing, Layout(rows.of(nothing), np.zeros(0, np.int64))
    highest = int(rows.of(among).live().max(initial=0)) + _STRIP * bound
    for size in np.unique(rows.size[among]).tolist():
        small = among & (rows.size <= size)
        few, others = rows.of(small), int(rows.of(among & ~small).live().max(initial=0))
        if int(few.live().max()) + others > highest:
            break
        strip = Layout(few, first_fit(few))
        if strip.size + others <= highest:
            best = small, strip
    return best


def _smaller_and_smaller(rows: Lifetimes, target: int, known: int, effort: int) -> Iterator[Ints]:
    """Yield ever better offsets, the last within `target` bytes if all goes well.

    known: bytes that are reached.
    Half of the tries are at the target. The others halve the way from what is reached to what is not.
    """
    least = failed = max(target, int(rows.live().max(initial=0)))
    unit = int(np.gcd.reduce(rows.size, initial=0)) or 1  # so offsets are whole multiples of it, too
    rounds = min(_ROUNDS, 200 * len(rows.size))
    for number in range(min(_TRIES, effort // max(1, len(rows.size) * rounds))):
        if known <= least:
            break
        capacity = (least if number % 2 == 0 else (known + failed) // 2) // unit * unit
        found = within(rows, capacity, rounds, number, number // 2 % 2 == 0)
        if found is not None:
            # A failure is not a proof, so after a success capacities down to `least` are tried once more.
            known, failed = int((found + rows.size).max()), least
            yield found
        elif number % 2:
            failed = capacity
