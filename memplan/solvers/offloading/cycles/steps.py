"""Construction of the schedule from an order of runs and transfers: with deletes, and where weights start."""

from __future__ import annotations

from collections.abc import Sequence

from ....graphs.machine import Memory
from ....planner.schedule.schedule import Initial, Schedule, ScheduleStep, compute, delete, offload, prefetch
from .cycle import FROZEN, Cycle


def schedule_of_order(cycle: Cycle, order: Sequence[int]) -> Schedule:
    """Return the schedule of an order, with its deletes and the memories in which weights start.

    order: as in replay.py; one that its `period` accepts.

    An iteration is played once to see where the weights are when it ends, then once more for the steps. A
    host copy is deleted when it gets stale.
    """
    residency = _StepWriter(cycle, order)
    # Its steps are thrown out: it leaves the weights where a period begins and ends.
    residency.write_iteration()
    moved = sorted({interval.weight for interval in residency.chosen})
    on_device = [weight for weight in moved if residency.here[weight]]
    both = frozenset(cycle.tensors[weight] for weight in on_device if residency.fresh[weight])
    host = frozenset(
        [*(cycle.tensors[weight] for weight in moved if not residency.here[weight]), *cycle.unused]
    )
    return Schedule.of(residency.write_iteration(), Initial(host=host, both=both))


class _StepWriter:
    """Writes a schedule's steps from an order, and tracks where each weight is.

    here: it is on the device. fresh: a copy on the host is up to date.
    waiting: it leaves the device as soon as its copy to the host is on its way.
    """

    def __init__(self, cycle: Cycle, order: Sequence[int]) -> None:
        self.cycle, self.order = cycle, order
        self.frozen = cycle.runs + len(cycle.changed_by)
        self.chosen = [cycle.intervals[token - self.frozen] for token in order if token >= self.frozen]
        self.here = [True] * len(cycle.tensors)
        self.fresh = [False] * len(cycle.tensors)
        for interval in self.chosen:
            # A weight that nothing changes has an up-to-date host copy from the start.
            self.fresh[interval.weight] |= interval.version == FROZEN
        self.waiting = [False] * len(cycle.tensors)
        self.leaving: dict[int, list[int]] = {}
        self.changes: dict[int, list[int]] = {}
        for interval in self.chosen:
            self.leaving.setdefault(interval.after, []).append(interval.weight)
        for weight, run in cycle.changed_by:
            self.changes.setdefault(run, []).append(weight)

    def write_iteration(self) -> list[ScheduleStep]:
        steps: list[ScheduleStep] = []
        cycle = self.cycle
        for token in self.order:
            if token < cycle.runs:
                steps += self._run(token)
            elif token < self.frozen:
                weight = cycle.changed_by[token - cycle.runs][0]
                self.fresh[weight] = True
                steps.append(offload(cycle.tensors[weight]))
                # The device's copy goes only now: before, it was the one up-to-date copy.
                if self.waiting[weight]:
                    steps += self._leave(weight)
            else:
                weight = cycle.intervals[token - self.frozen].weight
                self.here[weight], self.waiting[weight] = True, False
                steps.append(prefetch(cycle.tensors[weight]))
        return steps

    def _run(self, run: int) -> list[ScheduleStep]:
        steps = [compute(run), *(delete(tensor) for tensor in self.cycle.deaths[run])]
        for weight in self.changes.get(run, []):
            if self.fresh[weight]:
                steps.append(delete(self.cycle.tensors[weight], Memory.HOST))
            self.fresh[weight] = False
        for weight in self.leaving.get(run, []):
            self.waiting[weight] = True
            if self.fresh[weight]:
                steps += self._leave(weight)
        return steps

    def _leave(self, weight: int) -> list[ScheduleStep]:
        self.waiting[weight] = self.here[weight] = False
        return [delete(self.cycle.tensors[weight])]
