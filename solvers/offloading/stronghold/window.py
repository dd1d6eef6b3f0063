"""The size of STRONGHOLD's working window on the device, in layers, by P1 and P2 (terms.py).

A larger window needs more memory, so the largest that fits is found by bisection. O(n²) for n layers and
windows of few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .terms import (
    LayerFigures,
    fetched_in_time,
    fits,
    iteration_seconds,
    queue_in_time,
    recycled_in_time,
    updated_in_time,
)


class Overlap(StrEnum):
    HIDDEN = "hidden"
    """P1, P2 and (3) hold: all transfers and updates are hidden by computations"""
    STALLS = "stalls"
    """the window fits, and something waits"""
    OUT_OF_MEMORY = "out of memory"
    """not even a window of one layer fits"""


@dataclass(frozen=True)
class Window:
    """The chosen window.

    size: layers, 0 if none fits. needed: the least that P1 and P2's hard terms (b) require, None if no size
    is enough. largest: that (c) allows. seconds: the paper's estimate if all is hidden.
    """

    size: int
    overlap: Overlap
    needed: int | None
    largest: int
    seconds: float


def working_window(layers: Sequence[LayerFigures], room: int, call_seconds: float = 0.0) -> Window:
    """Return the smallest window that hides everything; if none does, the largest that fits."""
    sizes = range(1, len(layers) + 1)
    largest = bisect_left(sizes, True, key=lambda m: not fits(layers, m, room))
    needed = next((m for m in sizes if fetched_in_time(layers, m, call_seconds)), None)
    size = next((m for m in sizes[:largest] if _all_hidden(layers, m, call_seconds)), None)
    overlap = Overlap.HIDDEN
    if size is None:
        size, overlap = largest, Overlap.STALLS if largest else Overlap.OUT_OF_MEMORY
    return Window(size, overlap, needed, largest, iteration_seconds(layers, size, call_seconds))


def _all_hidden(layers: Sequence[LayerFigures], size: int, call_seconds: float) -> bool:
    return (
        fetched_in_time(layers, size, call_seconds)
        and recycled_in_time(layers, size)
        and updated_in_time(layers, size)
        and queue_in_time(layers, size)
    )
