"""A greedy planner of tensor migration, the yardstick of strangers_traces.py: G10's rule on our model.

Kernels run once, in the file's order. While the memory is above the budget, a tensor leaves in that inactive
period whose absence takes away most of the excess, bytes times the seconds that are above the budget; of
several in the longest. The copy down starts with the period, the copy up as late as it can be hidden, by half
of its time more.

    1. Only periods whose copies fit into what the links have left beside the kernels that pass.
    2. Where that is not enough, any: whoever needs the tensor waits for it.

Tensors go to the host, and on to the disk where the host has no room. The simulator judges the schedule.

Reference: Zhang, Zhou, Xue, Liu, Huang, G10, MICRO 2023, and its artifact (`scheduling_prefetch` in
src/analysis.cc of github.com/platformxlab/G10). Other than there the disk lies behind the host, weights and
states never go on to it, and what is left over moves by transfers of the schedule, not by page faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine, Memory
from memplan.planner.residency.lifetimes import Lifetime, find_lifetimes, position_of
from memplan.planner.residency.prefetch_placement import ResidencyTransfers, place_prefetches
from memplan.planner.residency.residency import Residency, TensorUse
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import Figures
from numpy.typing import NDArray

SAFETY = 1.5
"""A copy up starts so many times its duration before it is needed: G10's δ of a half."""

HOST_SHARES = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)
"""Of the host, what may be filled: less where copies on their way to the disk or from it find no room."""

SAME = 1e-6
"""Relative, up to which areas count as equal."""

PATHS: dict[Memory, tuple[tuple[str, ...], ...]] = {
    Memory.HOST: (("d2h",), ("h2d",)),
    Memory.DISK: (("d2h", "disk_write"), ("disk_read", "h2d")),
}
"""The links of the ways down and up."""


@dataclass(frozen=True)
class Period:
    """From the run that uses a tensor to the next; that is in the next turn if beyond the number of runs."""

    tensor: int
    after: int
    before: int
    persistent: bool


def greedy(graph: Graph, machine: Machine, budget: int) -> tuple[Schedule, Figures] | None:
    """Its schedule within `budget` bytes, judged; None where none of its choices fits."""
    capacity = machine.host_capacity
    for share in HOST_SHARES[: None if capacity else 1]:
        offloaded = _Choice(graph, machine, budget, share * capacity if capacity else np.inf).offloaded()
        residency = Residency(in_default_mode(range(len(graph.operations))), offloaded)
        found = place_prefetches(graph, machine, budget, residency, (SAFETY,))
        if found:
            return found
    return None


def periods(graph: Graph, lifetime: Lifetime) -> Iterator[Period]:
    """Those of one lifetime, from the run on that completes the tensor."""
    runs, tensor = len(graph.operations), lifetime.tensor
    if not graph.tensors.bytes[tensor] or (graph.resident[tensor] and not lifetime.persistent):
        return
    first = 0 if lifetime.persistent else next((i for i, use in enumerate(lifetime.uses) if use.changes), 0)
    at = [position_of(use.moment) for use in lifetime.uses[first:]]
    for after, before in zip(
        at, [*at[1:], *(run + runs for run in at[:1] if lifetime.persistent)], strict=False
    ):
        if before > after + 1:
            yield Period(tensor, after, before, lifetime.persistent)


class _Choice:
    """level, on_host: bytes on the device and the host while each run runs. free: seconds that each link has
    left beside each run. idle: seconds of each period. host: bytes that may be there."""

    def __init__(self, graph: Graph, machine: Machine, budget: int, host: float) -> None:
        self.graph, self.machine, self.budget, self.host = graph, machine, budget, host
        runs, self.seconds = in_default_mode(range(len(graph.operations))), graph.operations.time
        self.whole = ResidencyTransfers(graph, machine.hierarchy, Residency(runs)).device_curve[1::2]
        self.level = self.whole.copy()
        self.on_host = np.zeros(len(runs), np.int64)
        self.free = {link: self.seconds.copy() for ways in PATHS[Memory.DISK] for link in ways}
        self.found = [
            period for lifetime in find_lifetimes(graph, runs) for period in periods(graph, lifetime)
        ]
        self.sizes = graph.tensors.bytes[[period.tensor for period in self.found]]
        self.after, self.before = (
            np.array([getattr(period, end) for period in self.found], np.int64) for end in ("after", "before")
        )
        clock = np.concatenate(([0.0], np.tile(self.seconds, 2).cumsum()))
        self.idle = clock[self.before] - clock[self.after + 1]

    def offloaded(self) -> dict[TensorUse, Memory]:
        """Periods that suffice, if any do; the hidden ones first."""
        chosen: dict[int, Memory] = {}
        for hidden in (True, False):
            left = np.ones(len(self.found), np.bool_)
            left[list(chosen)] = False
            while (best := self._best(left)) is not None:
                left[best] = False
                memory = self._memory(best)
                there = self._passing(best) if not hidden else self._beside(best, memory)
                if memory is not None and there is not None:
                    self.level[there] -= self.sizes[best]
                    if memory == Memory.HOST:
                        self.on_host[self._held(best)] += self.sizes[best]
                    chosen[best] = memory
            if hidden:  # from here on what leaves is gone at once: the others wait for it
                self.level[:] = self.whole
                for index in chosen:
                    self.level[self._passing(index)] -= self.sizes[index]
        return {(self.found[i].tensor, self.found[i].after): memory for i, memory in chosen.items()}

    def _best(self, left: NDArray[np.bool_]) -> int | None:
        """The period that takes most away of the excess in bytes times seconds, the longest of several; None
        where none does."""
        over = np.tile(np.where(self.level > self.budget, self.seconds, 0.0), 2)
        until = np.concatenate(([0.0], over.cumsum()))
        area = np.where(left, self.sizes * (until[self.before] - until[self.after + 1]), 0.0)
        most = area >= area.max(initial=0.0) * (1 - SAME)
        return int(np.where(most, self.idle, -1.0).argmax()) if area.any() else None

    def _passing(self, index: int) -> NDArray[np.int64]:
        return np.arange(self.after[index] + 1, self.before[index]) % len(self.level)

    def _held(self, index: int) -> NDArray[np.int64] | slice:
        """When a copy lies on the host: of a weight, always."""
        return slice(None) if self.found[index].persistent else self._passing(index)

    def _memory(self, index: int) -> Memory | None:
        """Where it goes; None: nowhere has room for it."""
        if int(self.on_host[self._held(index)].max()) + self.sizes[index] <= self.host:
            return Memory.HOST
        later = self.machine.links.disk_write and not self.found[index].persistent
        return Memory.DISK if later else None

    def _beside(self, index: int, memory: Memory | None) -> NDArray[np.int64] | None:
        """The runs that pass while it is neither there nor on its way, by what the links have left, which is
        taken. None where its copies do not fit beside those that pass."""
        passing = self._passing(index)
        taken: dict[str, NDArray[np.float64]] = {}
        slots = [0, 0]
        for back, way in enumerate(PATHS[memory] if memory else ()):
            for link in way:
                free = self.free[link][passing][:: -1 if back else 1]
                seconds = getattr(self.machine.links, link).seconds(float(self.sizes[index]))
                until = free.cumsum()
                if until[-1] < seconds:
                    return None
                taken[link] = np.diff(np.minimum(until, seconds), prepend=0.0)[:: -1 if back else 1]
                slots[back] = max(slots[back], int(np.searchsorted(until, seconds)) + 1)
        if sum(slots) > len(passing):
            return None
        for link, used in taken.items():
            self.free[link][passing] -= used
        return passing[slots[0] : len(passing) - slots[1]]
