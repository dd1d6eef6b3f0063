"""What a residence asks of the memory and of the link: device bytes at each moment, and the fetches.

Moments as in lives.py. The bytes are those of list order with every fetch just before its use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ..schedule.schedule import PLAIN
from ..schedule.sequence import Run
from .levels import Level
from .lives import Life, lives, position_of, run_moment, turn_length
from .residence import Place, Residence, life_levels


class Fetch(NamedTuple):
    """A copy to be brought up for a use. use, earliest: moments; earliest may lie in the turn before."""

    tensor: int
    use: int
    earliest: int


class Demand:
    """fetches: all copies up to the device that a residence needs, in the order of need.

    curve: device bytes at each moment of a turn with every fetch just before its use. peak: its maximum.
    """

    def __init__(self, graph: Graph, machine: Machine, residence: Residence) -> None:
        self.graph, self.machine, self.residence = graph, machine, residence
        self.turn = turn_length(len(residence.runs))
        self.starts = start_times(graph, residence.runs)
        self.curve = np.zeros(self.turn, np.int64)
        add_workspace(self.curve, graph, residence.runs)
        fetches: list[Fetch] = []
        for life in lives(graph, residence.runs):
            device, _host, disk = life_levels(residence, life)
            for low, high in occupied(life, device, self.turn):
                self.curve[low:high] += int(graph.tensors.bytes[life.tensor])
            found = fetches_of(life, device, self.turn)
            if disk.pieces:  # `initial` has no word for a copy on the disk and elsewhere
                found = (fetch._replace(earliest=max(0, fetch.earliest)) for fetch in found)
            fetches += found
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
        link = self.machine.links.h2d
        return link.seconds(float(self.graph.tensors.bytes[tensor])) if link else 0.0

    def _slot_before(self, seconds: float) -> int:
        """The moment of the last slot that starts at or before a time within the last turn and this."""
        period = self.starts[-1]
        if seconds < -period:
            return -self.turn
        turns = 0 if seconds >= 0 else -1
        slot = bisect_right(self.starts, seconds - turns * period) - 1
        return turns * self.turn + 2 * slot


def occupied(life: Life, device: Level, turn: int) -> Iterator[tuple[int, int]]:
    """The moments from … to (excluded), within one turn, at which a copy is on the device."""
    for index, piece in enumerate(device.pieces):
        made = index == 0 and not life.cyclic and not piece.fetched
        start = min(life.born, piece.start) if made else piece.start
        end = start + turn if piece.end is None and life.cyclic else piece.end or turn
        yield from _within(start, end, turn)


def _within(start: int, end: int, turn: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) of any turns as moments of one."""
    while start < end:
        low = start % turn
        high = min(turn, low + end - start)
        yield low, high
        start += high - low


def fetches_of(life: Life, device: Level, turn: int) -> Iterator[Fetch]:
    """What a life has fetched. earliest: after the copy before it has gone, or after the change below."""
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


def start_times(graph: Graph, runs: Sequence[Run]) -> list[float]:
    """When each run starts on the compute queue were nothing waited for, and when the last ends."""
    clock, starts = 0.0, list[float]()
    for operation, mode_index in runs:
        starts.append(clock)
        if mode_index == PLAIN:
            clock += float(graph.operations.time[operation])
        elif not (mode := graph.operations.modes[operation][mode_index - 1]).on_host:
            clock += mode.time
    return [*starts, clock]


def add_workspace(curve: NDArray[np.int64], graph: Graph, runs: Sequence[Run]) -> None:
    """Count what each run on the device takes for itself."""
    for position, (operation, mode_index) in enumerate(runs):
        if mode_index == PLAIN:
            curve[run_moment(position)] += graph.operations.workspace[operation]
        elif not (mode := graph.operations.modes[operation][mode_index - 1]).on_host:
            curve[run_moment(position)] += mode.workspace
