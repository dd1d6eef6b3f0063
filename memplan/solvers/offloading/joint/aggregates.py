"""Sums over all tensors and runs of a state: tables of rows, bytes by moment, where tensors start.

A table is one array of the rows of all tensors: those of one are replaced, the others stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.graph import Graph
from ....graphs.machine import Hierarchy, Memory
from ....planner.residency.lifetimes import run_moment
from ....planner.residency.prefetch_placement import may_start, memories_at_start
from ....planner.residency.tensor_transfers import FIXED_STEP, fetch_type
from .equivalent import Part
from .parts import INTERVAL
from .timeline import Lineup


class Aggregates:
    """Sums of all parts.

    moves, fetches, intervals: the rows of all parts.
    initial: per tensor the memories in which it starts, as bits. unsaid: tensors for which no schedule can
    say that.
    """

    def __init__(self, graph: Graph, lineup: Lineup, moments: int, hierarchy: Hierarchy) -> None:
        """Start with the workspaces of the runs alone."""
        tensors, hops = len(graph.tensors), len(hierarchy) - 1
        self._parts, self._gaps = dict[int, Part](), dict[int, Any]()
        self._cyclic: list[bool] = graph.persistent.tolist()
        self.moves, self.fetches = Rows(FIXED_STEP, "slot", tensors), Rows(fetch_type(hops), "use", tensors)
        self._intervals = Rows(INTERVAL, "after", tensors)
        self._changes = np.zeros((hops, moments + 1), np.int64)
        self._more, self._less = list[Part](), list[Part]()
        self._curves: Ints | None = None
        self.initial = memories_at_start(graph)
        self.unsaid = set[int]()
        for position in range(len(lineup.runs)):
            self.add_workspace(position, lineup.workspace(position))

    def intervals(self, x: int) -> Any:
        """Return the offload intervals that are counted for a tensor, None for one that takes no part."""
        return self._gaps.get(x)

    @property
    def all_intervals(self) -> Any:
        return self._intervals.used

    @property
    def curves(self) -> Ints:
        """Return the bytes in each memory but the last, on the device with workspace, by moment.

        Every fetch is just before its use.
        """
        if self._curves is None:
            for add, parts in ((np.add.at, self._more), (np.subtract.at, self._less)):
                if parts:
                    places = np.concatenate([part.places for part in parts])
                    add(self._changes.reshape(-1), places, np.concatenate([part.changes for part in parts]))
                    parts.clear()
            self._curves = self._changes[:, :-1].cumsum(axis=1)  # contiguous: compiled once
        return self._curves

    def add_workspace(self, position: int, size: int) -> None:
        if size:
            moment = run_moment(position)
            self._changes[Memory.DEVICE, moment] += size
            self._changes[Memory.DEVICE, moment + 1] -= size
            self._curves = None

    def put(self, x: int, part: Part) -> None:
        """Count this for a tensor, instead of what was counted."""
        before = self._parts.get(x)
        # The same object: parts never change, so neither have the sums.
        if part is before:
            return
        if before is not None:
            # Applied together, when the curves are asked for.
            self._less.append(before)
        self._more.append(part)
        self._curves = None
        self.moves.put(x, part.moves)
        self.fetches.put(x, part.fetches)
        if self._cyclic[x]:
            self.initial[x] = start = part.start
            (self.unsaid.discard if may_start(start) else self.unsaid.add)(x)
        self._parts[x] = part

    def put_intervals(self, x: int, rows: Any) -> bool:
        """Count these offload intervals for a tensor, instead of what was counted. Gives whether they are
        others."""
        if rows is self._gaps.get(x):
            return False
        self._intervals.put(x, rows)
        self._gaps[x] = rows
        return True


_SPARE = 2
"""Spare rows when the rows of a tensor are moved."""


class Rows:
    """An array of the rows of many tensors.

    field: of the rows, −1 in those that are not used.
    """

    def __init__(self, dtype: np.dtype[Any], field: str, tensors: int) -> None:
        self._rows, self._field, self._end = np.zeros(64, dtype), field, 0
        self._marks = self._rows[field]
        self._start, self._room = [0] * tensors, [0] * tensors

    @property
    def used(self) -> Any:
        """Return a view of all rows in use, with some unused ones among them."""
        return self._rows[: self._end]

    def put(self, tensor: int, rows: Any) -> None:
        start, room = self._start[tensor], self._room[tensor]
        count = len(rows)
        if room:
            # The old rows count no more; they may be more than the new ones.
            self._marks[start : start + room] = -1
        if count > room:
            start = self._place(tensor, count + _SPARE)
        if count:
            self._rows[start : start + count] = rows

    def _place(self, tensor: int, room: int) -> int:
        start, self._end = self._end, self._end + room
        if self._end > len(self._rows):
            # At least doubled, so that copying costs a constant time per row.
            self._rows = np.concatenate([self._rows, np.zeros(self._end, self._rows.dtype)])
            self._marks = self._rows[self._field]
        self._marks[start : self._end] = -1
        self._start[tensor], self._room[tensor] = start, room
        return start
