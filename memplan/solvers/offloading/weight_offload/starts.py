"""Initial orders: greedy selection and placing in several variants, and every weight moved lazily."""

from __future__ import annotations

from collections.abc import Sequence

from ..cycles.cycle import FROZEN, Cycle
from .scheduling import greedy_order
from .selection import SelectionRule, chosen_intervals, moved_bytes

PUBLISHED = SelectionRule(1.0, patient=False)
"""The printed variant: the excess as it is printed, and no filter by time."""

VARIANTS = (SelectionRule(2.0), SelectionRule(1.0), PUBLISHED)
"""Variants with room for two transfers, for one; with and without the filter by time."""

CLOSE_VARIANTS = (SelectionRule(0.0), SelectionRule(0.0, patient=False))
"""Variants without room in addition to what the runs need: tried if the others find nothing."""


def greedy_orders(cycle: Cycle, variants: Sequence[SelectionRule]) -> list[list[int]]:
    """Return one order for each variant that fits on the device and on the host."""
    orders: list[list[int]] = []
    for variant in variants:
        chosen = chosen_intervals(cycle, variant)
        if chosen is None or moved_bytes(cycle, chosen) > (cycle.host_limit or float("inf")):
            continue
        order = greedy_order(cycle, chosen)
        if order is not None:
            orders.append(order)
    return orders


def lazy_order(cycle: Cycle, chosen: Sequence[int]) -> list[int]:
    """Return the order in which weights are fetched right before use and copied to the host once changed."""
    fetches: dict[int, list[int]] = {}
    stores: dict[int, list[int]] = {}
    # Where the numbers of fetches and of copies to the host begin in an order (cycles/replay.py).
    fetch, store = cycle.runs + len(cycle.changed_by), cycle.runs
    for number in chosen:
        fetches.setdefault(cycle.intervals[number].before, []).append(fetch + number)
    for version in sorted({cycle.intervals[number].version for number in chosen} - {FROZEN}):
        stores.setdefault(cycle.changed_by[version][1], []).append(store + version)
    return [
        token for run in range(cycle.runs) for token in (*fetches.get(run, []), run, *stores.get(run, []))
    ]
