"""An offset for each copy: no two that are there at one step share a byte."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from ...graphs.graph import Graph
from ..errors import InvalidScheduleError
from ..schedule.file import Addresses
from .lifetimes import WORKSPACE, Lifetimes

RULE = "addresses"

Place = tuple[int, int]
"""An address range: its first offset, and the one after its last."""


class Layout:
    """Addresses of copies in one arena. Treat as read-only.

    lifetimes: the copies. offsets: bytes from the start of the arena, one row per copy. least: bytes, if a
    search has proven that no arena is smaller.
    """

    def __init__(self, lifetimes: Lifetimes, offsets: Ints, *, least: int = 0) -> None:
        self.lifetimes, self.offsets, self._least = lifetimes, offsets, least

    @staticmethod
    def recorded(graph: Graph, lifetimes: Lifetimes, addresses: Addresses) -> Layout:
        """Return the layout that a schedule file records.

        Raises InvalidScheduleError if the number of copies differs, if two that are resident together share a
        byte, or if they take more than the recorded arena.
        """
        arena, offsets = addresses
        if len(offsets) != len(lifetimes.size):
            fault = f"there are {len(offsets):,} offsets for {len(lifetimes.size):,} copies"
            raise InvalidScheduleError(RULE, fault, step=None)
        layout = Layout(lifetimes, np.array(offsets, np.int64))
        if (pair := layout.overlap()) is not None:
            one, other = (_name(graph, int(lifetimes.tensor[row])) for row in pair)
            raise InvalidScheduleError(
                RULE, f"{one} and {other} are there at once and share bytes", step=None
            )
        if layout.size > arena:
            fault = f"the copies take {layout.size:,} bytes, the arena has {arena:,}"
            raise InvalidScheduleError(RULE, fault, step=None)
        return layout

    def record(self) -> Addresses:
        return Addresses(self.size, tuple(self.offsets.tolist()))

    @cached_property
    def size(self) -> int:
        """Return the bytes of the arena."""
        return int((self.offsets + self.lifetimes.size).max(initial=0))

    @cached_property
    def bound(self) -> int:
        """Return a lower bound on the arena: the most bytes that are resident in one step."""
        return int(self.lifetimes.live().max(initial=0))

    @property
    def least(self) -> int:
        """Return the best known lower bound on the arena: `bound`, or what a search has proven."""
        return max(self.bound, self._least)

    def at(self, tensor: int, step: int) -> int | None:
        """Return the offset of the copy that a step makes, also if the copy before stays until then."""
        place = self._places.get((tensor, step))
        return None if place is None else place[0]

    def place(self, tensor: int, step: int) -> Place | None:
        """Return the address range of the copy that a step makes, or of the step's WORKSPACE."""
        return self._places.get((tensor, step))

    def initial(self, tensor: int) -> int | None:
        """Return the offset of the copy that is resident when an iteration starts; None if there is none."""
        place = self.initial_places.get(tensor)
        return None if place is None else place[0]

    def overlap(self) -> tuple[int, int] | None:
        """Return two rows that share a byte in some step; None in a valid layout."""
        rows = self.lifetimes
        order = np.argsort(self.offsets, kind="stable")
        tops = self.offsets + rows.size
        living: list[int] = []
        for i in order.tolist():
            # In the order of addresses: whatever ends below this offset meets none of those that follow.
            living = [j for j in living if tops[j] > self.offsets[i]]
            for j in living:
                if rows.meet(i, j):
                    return min(i, j), max(i, j)
            living.append(i)
        return None

    @cached_property
    def initial_places(self) -> dict[int, Place]:
        """Return per tensor the address range of the copy that is resident when an iteration starts."""
        rows = self.lifetimes
        # Lives into the next iteration, or through all of one: the same copy is there when one starts.
        there = (rows.end > rows.steps) | (rows.end - rows.start == rows.steps)
        return dict(zip(rows.tensor[there].tolist(), self._spans(there), strict=True))

    @cached_property
    def _places(self) -> dict[tuple[int, int], Place]:
        rows = self.lifetimes
        keys = zip(rows.tensor.tolist(), rows.start.tolist(), strict=True)
        return dict(zip(keys, self._spans(np.ones(len(rows.size), np.bool_)), strict=True))

    def _spans(self, rows: NDArray[np.bool_]) -> list[Place]:
        starts = self.offsets[rows]
        return list(zip(starts.tolist(), (starts + self.lifetimes.size[rows]).tolist(), strict=True))


def _name(graph: Graph, tensor: int) -> str:
    return "a workspace" if tensor == WORKSPACE else graph.tensors.name[tensor]
