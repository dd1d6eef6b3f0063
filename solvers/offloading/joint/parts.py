"""The contribution of one tensor to a state: transfers and deletes, bytes by moment, and offload intervals.

It depends on the modes of the runs that access it and on what is decided for its uses alone: it is cached by
these. planner/residency/tensor_transfers.py derives it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....planner.residency.lifetimes import Lifetime, count_moments, position_of, run_moment, tensor_lifetimes
from ....planner.residency.residency import Residency, TensorUse
from ....planner.residency.tensor_transfers import TensorTransfers, derive_transfers
from .timeline import Lineup

INTERVAL = np.dtype([(name, np.int64) for name in ("tensor", "after", "before")])

_MOST_KEPT = 100_000
"""Contributions that are cached: some hundred MB at most."""


class OffloadInterval(NamedTuple):
    """An offload interval of a tensor, between two uses on the device.

    before: beyond the runs' number for a use in the next iteration; the number itself for the iteration's
    end.
    """

    tensor: int
    after: int
    before: int

    @property
    def place(self) -> TensorUse:
        return self.tensor, self.after


class Decisions(NamedTuple):
    """Decisions by the tensor and the position of a use.

    offloaded: the memory in which the tensor is after it. leave: before which run the copy down is, if not at
    once.
    shift, read_shift: number of slots by which the fetch for it, and the read from the disk before that, come
    later than look-ahead and order of need say.
    """

    offloaded: dict[TensorUse, int]
    leave: dict[TensorUse, int]
    shift: dict[TensorUse, int]
    read_shift: dict[TensorUse, int]

    def copy(self) -> Decisions:
        return Decisions(dict(self.offloaded), dict(self.leave), dict(self.shift), dict(self.read_shift))


class Part(NamedTuple):
    """The contribution of one tensor to a state.

    transfers: what the tensor adds to the schedule. intervals: its offload intervals, rows ABSENCE.
    """

    transfers: TensorTransfers
    intervals: Any


class IntervalParts:
    """The contributions of all tensors for one sequence of runs, in any variants."""

    def __init__(self, graph: Graph, machine: Machine, lineup: Lineup) -> None:
        self.graph, self.machine, self.lineup = graph, machine, lineup
        self.moments = count_moments(len(lineup.runs))
        self._sizes: list[int] = graph.tensors.bytes.tolist()
        self._kept: dict[tuple[Any, ...], Part] = {}

    def of(self, x: int, decided: Decisions) -> Part:
        """Return the contribution of tensor x; only the decisions about this tensor matter."""
        positions, runs = self.lineup.touched[x], self.lineup.runs
        places = [(x, position) for position in positions] or [(x, -1)]
        modes = tuple([runs[position][1] for position in positions])
        offloaded, leave, shift, read_shift = decided
        wishes = tuple([(offloaded.get(w), leave.get(w), shift.get(w), read_shift.get(w)) for w in places])
        key = (x, modes, wishes)
        if key not in self._kept:
            if len(self._kept) == _MOST_KEPT:
                self._kept.clear()
            said = {place: offloaded[place] for place in places if place in offloaded}
            slots = {place: leave[place] for place in places if place in leave}
            self._kept[key] = self._make(x, Residency(runs, said, slots), decided)
        return self._kept[key]

    def _make(self, x: int, residency: Residency, decided: Decisions) -> Part:
        touches = [(run_moment(position), touch) for position, touch in self.lineup.present(x)]
        lifetimes = tensor_lifetimes(self.graph, x, touches)[::-1]
        transfers = derive_transfers(self._sizes, self.machine.hierarchy, residency, lifetimes)
        for fetch in transfers.fetches:
            place = x, position_of(fetch["use"])
            shifts = decided.shift.get(place, 0), decided.read_shift.get(place, 0)
            fetch["shift"][: len(shifts)] = shifts  # reads to deeper memories are not shifted
        intervals = [interval for lifetime in lifetimes for interval in self._intervals(lifetime)]
        return Part(transfers, np.array(intervals, INTERVAL))

    def _intervals(self, lifetime: Lifetime) -> list[OffloadInterval]:
        fixed = self.graph.resident[lifetime.tensor] and not lifetime.persistent
        if fixed:
            return []
        runs, uses = len(self.lineup.runs), lifetime.device_uses
        complete = next((i for i, use in enumerate(uses) if use.changes), 0) if not lifetime.persistent else 0
        positions = [position_of(use.moment) for use in uses[complete:]]
        following = positions[1:]
        if lifetime.persistent:
            following += [position + runs for position in positions[:1]]
        elif lifetime.survives:
            following += [runs]
        pairs = zip(positions, following, strict=False)
        return [
            OffloadInterval(lifetime.tensor, after, before) for after, before in pairs if before > after + 1
        ]
