"""What all tensors and runs of a state add up to: tables of rows, bytes by moment, where tensors start."""

from __future__ import annotations

import numpy as np

from ....graphs.graph import Graph
from ....planner.residence.lives import run_moment
from .assemble import FETCH, MOVE
from .lineup import Lineup
from .parts import ABSENCE, Part
from .rows import Rows

_SAID = (0, 1, 2, 3, 4)
"""The memories, as bits, in which a schedule can say that a tensor starts."""


class Total:
    """moves, fetches, absences: the rows of all parts. curve, host_curve: bytes on the device, workspace
    included, and on the host, by moment, with every fetch just before its use. initial: per tensor the
    memories where it starts, as bits. unsaid: tensors for which no schedule can say that."""

    def __init__(self, graph: Graph, lineup: Lineup, turn: int) -> None:
        tensors = len(graph.tensors)
        self.graph, self._parts = graph, dict[int, Part]()
        self._sizes: list[int] = graph.tensors.bytes.tolist()
        self._cyclic: list[bool] = graph.persistent.tolist()
        self.moves, self.fetches = Rows(MOVE, "slot", tensors), Rows(FETCH, "use", tensors)
        self.absences = Rows(ABSENCE, "after", tensors)
        self.curve, self.host_curve = np.zeros(turn, np.int64), np.zeros(turn, np.int64)
        self.curve[1::2] = [lineup.workspace(position) for position in range(len(lineup.runs))]
        self.initial = np.where(graph.resident, 1, 0).astype(np.uint8)
        self.unsaid = set[int]()

    def part(self, x: int) -> Part | None:
        """What is counted for a tensor; None for one that takes no part."""
        return self._parts.get(x)

    def add_workspace(self, position: int, size: int) -> None:
        self.curve[run_moment(position)] += size

    def put(self, x: int, part: Part) -> bool:
        """Count this for a tensor, instead of what was counted. Gives whether it is another."""
        before, size = self._parts.get(x), self._sizes[x]
        if part is before:
            return False
        for curve, old, new in (
            (self.curve, before.spans if before else (), part.spans),
            (self.host_curve, before.host_spans if before else (), part.host_spans),
        ):
            for low, high in old:
                curve[low:high] -= size
            for low, high in new:
                curve[low:high] += size
        self.moves.put(x, part.moves)
        self.fetches.put(x, part.fetches)
        if self._cyclic[x]:
            self.initial[x] = part.start
            (self.unsaid.discard if part.start in _SAID else self.unsaid.add)(x)
        self.absences.put(x, part.absences)
        self._parts[x] = part
        return True
