"""Where the prefetches of a residence stand: early enough to be hidden, as far as the memory allows.

Copies down start at once, first in first out. Copies up keep the order of need, so an early one never delays
a later one but by the memory it takes. For a *look-ahead* of k, each is wanted on its way k times its own
duration before the next in the queue must start; it is put there, or later, where all between leaves room.
The simulator tries several look-aheads, with and without a reserve, and the fastest schedule is returned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graphs.graph import Graph
from ..graphs.machine import Machine, Memory
from .errors import InvalidScheduleError
from .levels import Level
from .lives import Life, lives, position_of, run_moment, turn_length
from .residence import Place, Residence, life_levels, residence_schedule
from .schedule import PLAIN, Schedule
from .sequence import Run
from .simulate import Figures, simulate

LOOK_AHEADS = (0.0, 1.0, 1.5, 3.0, inf)


class Fetch(NamedTuple):
    """A copy to be brought up for a use. use, earliest: moments; earliest may lie in the turn before."""

    tensor: int
    use: int
    earliest: int


def placed(
    graph: Graph,
    machine: Machine,
    budget: int,
    residence: Residence,
    look_aheads: Sequence[float] = LOOK_AHEADS,
) -> tuple[Schedule, Figures] | None:
    """The fastest schedule over the look-aheads, with its figures; None where none fits.

    budget: device bytes. A place that `residence.back` names already is kept.
    """
    demand = Demand(graph, machine, residence)
    if demand.peak > budget:
        return None
    best: tuple[Schedule, Figures] | None = None
    largest = max((int(graph.tensors.bytes[fetch.tensor]) for fetch in demand.fetches), default=0)
    for reserve in (0, largest):
        for look_ahead in look_aheads:
            back = {**demand.places(look_ahead, budget - reserve), **residence.back}
            found = judged(graph, machine, budget, replace(residence, back=back))
            if found and (best is None or found[1].time < best[1].time):
                best = found
    return best


def judged(
    graph: Graph, machine: Machine, budget: int, residence: Residence
) -> tuple[Schedule, Figures] | None:
    """The schedule with its figures, None where the simulator refuses it."""
    try:
        schedule = residence_schedule(graph, residence)
        return schedule, simulate(graph, schedule, budget=budget, machine=machine).figures
    except InvalidScheduleError:
        return None


class Demand:
    """fetches: all copies up to the device that a residence needs, in the order of need.

    curve: device bytes at each moment of a turn with every fetch just before its use. peak: its maximum.
    """

    def __init__(self, graph: Graph, machine: Machine, residence: Residence) -> None:
        self.graph, self.machine, self.residence = graph, machine, residence
        self.turn = turn_length(len(residence.runs))
        self.starts = _starts(graph, residence.runs)
        self.curve = np.zeros(self.turn, np.int64)
        _add_workspace(self.curve, graph, residence.runs)
        fetches: list[Fetch] = []
        for life in lives(graph, residence.runs):
            device = life_levels(residence, life)[0]
            self._count(life, device)
            fetches += _fetches(life, device, self.turn)
        self.fetches = sorted(fetches, key=lambda fetch: fetch.use)
        self.peak = int(self.curve.max(initial=0))

    def places(self, look_ahead: float, cap: int) -> dict[Place, int]:
        """Where each fetch stands, for Residence.back. cap: device bytes that early fetches keep within."""
        curve = self.curve.copy()
        turn, places = self.turn, dict[Place, int]()
        last = -turn
        for fetch, wanted in zip(self.fetches, self._wanted(look_ahead), strict=True):
            size = int(self.graph.tensors.bytes[fetch.tensor])
            slot = max(wanted, fetch.earliest, last)
            slot += slot % turn % 2
            moments = np.arange(slot, fetch.use - 1) % turn
            tight = np.flatnonzero(curve[moments] > cap - size)
            if len(tight):
                slot = min(slot + int(tight[-1]) + 1, fetch.use - 1)
                slot += slot % turn % 2
                moments = np.arange(slot, fetch.use - 1) % turn
            curve[moments] += size
            last = slot
            places[fetch.tensor, position_of(fetch.use)] = slot % turn // 2
        return places

    def _wanted(self, look_ahead: float) -> list[int]:
        """Per fetch the moment of the slot where it should stand: the queue served backwards in time,
        twice around the cycle."""
        period = self.starts[-1]
        due = inf
        found: list[float] = []
        for turns in (1, 0):
            found = []
            for fetch in reversed(self.fetches):
                due = min(due, self.starts[position_of(fetch.use)] + turns * period)
                due -= look_ahead * self._seconds(fetch.tensor)
                found.append(due)
        return [self._slot_before(seconds) for seconds in reversed(found)]

    def _seconds(self, tensor: int) -> float:
        return float(self.graph.tensors.bytes[tensor]) / (self.machine.links.h2d or inf)

    def _slot_before(self, seconds: float) -> int:
        """The moment of the last slot that starts at or before a time within the last turn and this."""
        period = self.starts[-1]
        if seconds < -period:
            return -self.turn
        turns = 0 if seconds >= 0 else -1
        slot = bisect_right(self.starts, seconds - turns * period) - 1
        return turns * self.turn + 2 * slot

    def _count(self, life: Life, device: Level) -> None:
        size, turn = int(self.graph.tensors.bytes[life.tensor]), self.turn
        for index, piece in enumerate(device.pieces):
            born = index == 0 and not life.cyclic and not piece.fetched
            start = min(life.born, piece.start) if born else piece.start
            end = start + turn if piece.end is None and life.cyclic else piece.end or turn
            for low, high in _within(start, end, turn):
                self.curve[low:high] += size


def _within(start: int, end: int, turn: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) of any turns as moments of one."""
    while start < end:
        low = start % turn
        high = min(turn, low + end - start)
        yield low, high
        start += high - low


def _fetches(life: Life, device: Level, turn: int) -> Iterator[Fetch]:
    """earliest: after the copy before it has gone, or after the change below."""
    pieces = [piece for piece in device.pieces if piece.end is not None or piece.fetched]
    changes = [use.moment for use in life.uses if use.changes and use.memory != Memory.DEVICE]
    for index, piece in enumerate(pieces):
        if piece.use is None:
            continue
        use = piece.use
        shift = use - use % turn
        before = pieces[index - 1] if index or life.cyclic else None
        gone = [] if before is None or before.end is None else [before.end - (0 if index else turn)]
        made = [change + 1 - turn * (change > use % turn) for change in changes]
        yield Fetch(life.tensor, use - shift, max([*(end - shift for end in gone), *made], default=-turn))


def _starts(graph: Graph, runs: Sequence[Run]) -> list[float]:
    """When each run starts on the compute queue were nothing waited for, and when the last ends."""
    clock, starts = 0.0, list[float]()
    for operation, mode_index in runs:
        starts.append(clock)
        if mode_index == PLAIN:
            clock += float(graph.operations.time[operation])
        elif not (mode := graph.operations.modes[operation][mode_index - 1]).on_host:
            clock += mode.time
    return [*starts, clock]


def _add_workspace(curve: NDArray[np.int64], graph: Graph, runs: Sequence[Run]) -> None:
    for position, (operation, mode_index) in enumerate(runs):
        if mode_index == PLAIN:
            curve[run_moment(position)] += graph.operations.workspace[operation]
        elif not (mode := graph.operations.modes[operation][mode_index - 1]).on_host:
            curve[run_moment(position)] += mode.workspace
