"""A stretch of a schedule to decide anew: what runs in it, what is there before and what must be after.

    start ──▶ recompute* · stages[0] ──▶ recompute* · stages[1] ──▶ … ──▶ recompute* · stages[-1] ──▶ end

The order of `stages` is given. In each stage, before its own operation, any of the operations `recompute`
may run, each at most once and in the file's order; that place is its slot. Slots and stage ends are numbered
as events: stage t has the events t·width … t·width + width − 1, the last is its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ....graphs.graph import Graph
from ....planner.schedule.sequence import Run
from ...stages.slots import last_stages


@dataclass(frozen=True)
class Window:
    """stages: operations that run once each at their stages' ends, in an order that the dependencies allow.

    recompute: operation -> first and last stage in which it may run besides.
    start: tensor -> the producers whose contributions are on the device before the window.
    end: tensor -> the producers whose contributions must be on the device after it.
    capacity: bytes for all that is not always on the device (inputs, persistent tensors).
    copies: how often an operation may run at most, its stage's end included.
    """

    graph: Graph
    stages: Sequence[int]
    recompute: Mapping[int, tuple[int, int]]
    start: Mapping[int, frozenset[int]]
    end: Mapping[int, frozenset[int]]
    capacity: int
    copies: int = 2

    @cached_property
    def ranks(self) -> Mapping[int, int]:
        """Operation -> its place among the slots of a stage."""
        return {operation: rank for rank, operation in enumerate(sorted(self.recompute))}

    @property
    def width(self) -> int:
        return len(self.recompute) + 1

    @property
    def horizon(self) -> int:
        """The event after the last."""
        return len(self.stages) * self.width

    def stage_end(self, stage: int) -> int:
        return (stage + 1) * self.width - 1

    def slot(self, stage: int, operation: int) -> int:
        return stage * self.width + self.ranks[operation]

    def events(self, runs: Sequence[Run]) -> list[int] | None:
        """The event of each run of a sequence; None where it is not cut into these stages."""
        found: list[int] = []
        stage, before = 0, -1
        for operation, _mode in runs:
            if stage < len(self.stages) and operation == self.stages[stage]:
                found.append(self.stage_end(stage))
                stage, before = stage + 1, -1
                continue
            rank = self.ranks.get(operation, -1)
            first, last = self.recompute.get(operation, (1, 0))
            if rank <= before or not first <= stage <= last:
                return None
            found.append(self.slot(stage, operation))
            before = rank
        return found if stage == len(self.stages) else None


def whole(graph: Graph, capacity: int, copies: int) -> Window:
    """All of the graph in the file's order."""
    recompute = {
        operation: (operation + 1, last)
        for operation, last in enumerate(last_stages(graph))
        if last > operation
    }
    producers = graph.producers.lists()
    end = {x: frozenset(producers[x]) for x in graph.results if not graph.resident[x]}
    return Window(graph, range(len(graph.operations)), recompute, {}, end, capacity, copies)
