"""Events of a schedule in traced order: a stage for each operation, with slots for recomputations.

    repeats* · operation 0 ──▶ repeats* · operation 1 ──▶ … ──▶ repeats* · the last operation ──▶ results

In stage t, before operation t, any earlier operation that may be recomputed runs at most once, in traced
order; that position is its slot. Slots and stage ends are numbered as events: stage t has the events
t·width … t·width + width − 1, the last is its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ....graphs.graph import Graph
from ....planner.schedule.sequence import Run
from ...stages.slots import last_stages


@dataclass(frozen=True)
class Timeline:
    """The stages and slots of a graph.

    capacity: bytes for all that is not always on the device (inputs, persistent tensors).
    copies: the most runs of an operation, its own stage included.
    """

    graph: Graph
    capacity: int
    copies: int = 2

    @cached_property
    def last(self) -> Mapping[int, int]:
        """Last stage in which an operation may be recomputed, for those that may: operation -> stage."""
        # Stage k is the operation's own, so a recomputation needs a later one.
        return {k: last for k, last in enumerate(last_stages(self.graph)) if last > k}

    @cached_property
    def ranks(self) -> Mapping[int, int]:
        """Operation -> its place among the slots of a stage."""
        return {operation: rank for rank, operation in enumerate(self.last)}

    @cached_property
    def results(self) -> tuple[int, ...]:
        """Tensors to be on the device after the last stage, and not always resident."""
        return tuple(x for x in self.graph.results if not self.graph.resident[x])

    @property
    def stages(self) -> int:
        return len(self.graph.operations)

    @property
    def width(self) -> int:
        return len(self.last) + 1

    @property
    def horizon(self) -> int:
        """The event after the last."""
        return self.stages * self.width

    def stage_end(self, stage: int) -> int:
        return (stage + 1) * self.width - 1

    def slot(self, stage: int, operation: int) -> int:
        return stage * self.width + self.ranks[operation]

    def events(self, runs: Sequence[Run]) -> list[int] | None:
        """Return the event of each run of a sequence; None if it is not cut into these stages."""
        found: list[int] = []
        stage, before = 0, -1
        for operation, _mode in runs:
            if operation == stage:
                found.append(self.stage_end(stage))
                stage, before = stage + 1, -1
                continue
            rank = self.ranks.get(operation, -1)
            # Slots go in traced order, each at most once a stage; rank −1 is an operation without slots.
            if rank <= before or not operation < stage <= self.last[operation]:
                return None
            found.append(self.slot(stage, operation))
            before = rank
        return found if stage == self.stages else None
