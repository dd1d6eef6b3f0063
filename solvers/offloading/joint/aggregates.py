"""Sums over all tensors and runs of a state: tables of rows, bytes by moment, where tensors start.

A table is one array of the rows of all tensors: those of one are replaced, the others stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....graphs.graph import Graph
from ....graphs.machine import Hierarchy, Memory
from ....planner.residency.lifetimes import run_moment
from ....planner.residency.prefetch_placement import may_start, memories_at_start
from ....planner.residency.tensor_transfers import FIXED_STEP, fetch_type
from ....planner.simulator.footprint import Footprint
from .parts import INTERVAL, Part
from .timeline import Lineup


class Aggregates:
    """Sums of all parts.

    moves, fetches, intervals: the rows of all parts.
    curves: bytes in each memory but the last, on the device with workspace, the rows, by moment, with every
    fetch just before its use. curve: the first of these.
    initial: per tensor the memories in which it starts, as bits. unsaid: tensors for which no schedule can
    say that.
    """

    def __init__(self, graph: Graph, lineup: Lineup, moments: int, hierarchy: Hierarchy) -> None:
        """Start with the workspaces of the runs alone."""
        tensors, hops = len(graph.tensors), len(hierarchy) - 1
        self.graph, self._parts = graph, dict[int, Part]()
        self._footprint = Footprint(graph, hierarchy)
        self._cyclic: list[bool] = graph.persistent.tolist()
        self.moves, self.fetches = Rows(FIXED_STEP, "slot", tensors), Rows(fetch_type(hops), "use", tensors)
        self.intervals = Rows(INTERVAL, "after", tensors)
        self.curves = np.zeros((hops, moments), np.int64)
        self.curve = self.curves[Memory.DEVICE]
        self.curve[1::2] = [lineup.workspace(position) for position in range(len(lineup.runs))]
        self.initial = memories_at_start(graph)
        self.unsaid = set[int]()

    def part(self, x: int) -> Part | None:
        """Return what is counted for a tensor; None for one that takes no part."""
        return self._parts.get(x)

    def add_workspace(self, position: int, size: int) -> None:
        self.curve[run_moment(position)] += size

    def put(self, x: int, part: Part) -> bool:
        """Count this for a tensor, instead of what was counted. Gives whether it is another."""
        before = self._parts.get(x)
        if part is before:
            return False
        for sign, counted in ((-1, before), (1, part)):
            for memory, spans in enumerate(counted.transfers.spans if counted else ()):
                where, size = self._footprint.of(x, memory)
                for low, high in spans:
                    self.curves[where, low:high] += sign * size
        self.moves.put(x, part.transfers.moves)
        self.fetches.put(x, part.transfers.fetches)
        if self._cyclic[x]:
            self.initial[x] = start = part.transfers.start
            (self.unsaid.discard if may_start(start) else self.unsaid.add)(x)
        self.intervals.put(x, part.intervals)
        self._parts[x] = part
        return True


_SPARE = 2
"""Spare rows when the rows of a tensor are moved."""


class Rows:
    """An array of the rows of many tensors.

    field: of the rows, −1 in those that are not used.
    """

    def __init__(self, dtype: np.dtype[Any], field: str, tensors: int) -> None:
        self._rows, self._field, self._end = np.zeros(64, dtype), field, 0
        self._start, self._room = [0] * tensors, [0] * tensors

    @property
    def used(self) -> Any:
        """Return a view of all rows in use, with some unused ones among them."""
        return self._rows[: self._end]

    def put(self, tensor: int, rows: Any) -> None:
        start, room = self._start[tensor], self._room[tensor]
        if room:
            self._rows[self._field][start : start + room] = -1
        if len(rows) > room:
            start = self._place(tensor, len(rows) + _SPARE)
        self._rows[start : start + len(rows)] = rows

    def _place(self, tensor: int, room: int) -> int:
        start, self._end = self._end, self._end + room
        if self._end > len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros(self._end, self._rows.dtype)])
        self._rows[self._field][start : self._end] = -1
        self._start[tensor], self._room[tensor] = start, room
        return start
