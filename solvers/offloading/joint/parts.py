"""What one tensor adds to a state: its transfers and deletes, its bytes by moment, and where it can be away.

    uses of the tensor ──lives_of──▶ lives ──life_levels──▶ copies on device, host, disk ──▶ rows

It depends on the modes of the runs that touch it and on what is decided for its uses alone: it is kept by
these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ....graphs.graph import Graph
from ....graphs.machine import Machine, Memory
from ....planner.residence.demand import fetches_of, occupied
from ....planner.residence.lives import Life, lives_of, position_of, run_moment, turn_length
from ....planner.residence.residence import (
    PREFETCH,
    READ,
    Place,
    Residence,
    life_levels,
    life_steps,
    memories_at_start,
)
from .assemble import FETCH, MOVE
from .lineup import Lineup

ABSENCE = np.dtype([(name, np.int64) for name in ("tensor", "after", "before")])

_MOST_KEPT = 100_000
"""Parts that are kept to be used again: some hundred MB at most."""


class Absence(NamedTuple):
    """Between two uses of a tensor on the device. before: beyond the runs' number for a use in the next turn;
    the number itself for the end of the turn."""

    tensor: int
    after: int
    before: int

    @property
    def place(self) -> Place:
        return self.tensor, self.after


class Decisions(NamedTuple):
    """Per place of a use. away: where the tensor is behind it. leave: before which run the copy down stands,
    if not at once. shift, read_shift: how many slots later the fetch for it stands, and the read from the
    disk before that, than look-ahead and order of need say."""

    away: dict[Place, Memory]
    leave: dict[Place, int]
    shift: dict[Place, int]
    read_shift: dict[Place, int]

    def copy(self) -> Decisions:
        return Decisions(dict(self.away), dict(self.leave), dict(self.shift), dict(self.read_shift))


class Part(NamedTuple):
    """moves, fetches: rows MOVE and FETCH of assemble.py. spans, host_spans: moments on the device and on the
    host, from … to (excluded). start: memories when a turn starts, as bits. absences: rows ABSENCE."""

    moves: Any
    fetches: Any
    spans: tuple[tuple[int, int], ...]
    host_spans: tuple[tuple[int, int], ...]
    start: int
    absences: Any


class Parts:
    """Of one line of runs, in any modes."""

    def __init__(self, graph: Graph, machine: Machine, lineup: Lineup) -> None:
        self.graph, self.machine, self.lineup = graph, machine, lineup
        self.turn = turn_length(len(lineup.runs))
        self._sizes: list[int] = graph.tensors.bytes.tolist()
        self._kept: dict[tuple[Any, ...], Part] = {}

    def of(self, x: int, decided: Decisions) -> Part:
        """Only what is decided for this tensor matters."""
        positions, runs = self.lineup.touched[x], self.lineup.runs
        places = [(x, position) for position in positions] or [(x, -1)]
        modes = tuple([runs[position][1] for position in positions])
        away, leave, shift, read_shift = decided
        wishes = tuple([(away.get(w), leave.get(w), shift.get(w), read_shift.get(w)) for w in places])
        key = (x, modes, wishes)
        if key not in self._kept:
            if len(self._kept) == _MOST_KEPT:
                self._kept.clear()
            said = {place: away[place] for place in places if place in away}
            slots = {place: leave[place] for place in places if place in leave}
            self._kept[key] = self._make(x, Residence(runs, said, slots), decided)
        return self._kept[key]

    def _make(self, x: int, residence: Residence, decided: Decisions) -> Part:
        touches = [(run_moment(position), touch) for position, touch in self.lineup.present(x)]
        moves, fetches = list[tuple[int, ...]](), list[tuple[Any, ...]]()
        spans, host_spans = list[tuple[int, int]](), list[tuple[int, int]]()
        absences, start = list[Absence](), 0
        for life in reversed(lives_of(self.graph, x, touches)):
            levels = life_levels(residence, life)
            device, host, _disk = levels
            read = {piece.start % self.turn // 2 for piece in host.pieces if piece.fetched}
            fetched = list(fetches_of(life, device, self.turn))
            slots = {fetch.use % self.turn // 2 for fetch in fetched}
            moves += [
                (item.slot, item.rank, item.order, *item.step)
                for item in life_steps(x, levels, self.turn)
                if item.rank != PREFETCH and not (item.rank == READ and item.slot in slots)
            ]
            fetches += [self._fetch(*fetch, fetch.use // 2 in read, decided) for fetch in fetched]
            spans += occupied(life, device, self.turn)
            host_spans += occupied(replace(life, born=self.turn), host, self.turn)
            absences += self._absences(life)
            if life.cyclic:
                start = sum(1 << memory for memory in memories_at_start(levels, self.turn))
        return Part(
            np.array(moves, MOVE),
            np.array(fetches, FETCH),
            tuple(spans),
            tuple(host_spans),
            start,
            np.array(absences, ABSENCE),
        )

    def _fetch(self, x: int, use: int, earliest: int, from_disk: bool, decided: Decisions) -> tuple[Any, ...]:
        """A row FETCH."""
        links, size = self.machine.links, self._sizes[x]
        seconds = links.h2d.seconds(float(size)) if links.h2d else 0.0
        read = links.disk_read.seconds(float(size)) if from_disk and links.disk_read else 0.0
        place, first = (x, position_of(use)), max(0, earliest) if from_disk else earliest
        later, read_later = decided.shift.get(place, 0), decided.read_shift.get(place, 0)
        return x, use, first, size, later, read_later, seconds, read, from_disk

    def _absences(self, life: Life) -> list[Absence]:
        fixed = self.graph.resident[life.tensor] and not life.cyclic
        if fixed:
            return []
        runs, uses = len(self.lineup.runs), [use for use in life.uses if use.memory == Memory.DEVICE]
        complete = next((i for i, use in enumerate(uses) if use.changes), 0) if not life.cyclic else 0
        positions = [position_of(use.moment) for use in uses[complete:]]
        following = positions[1:]
        if life.cyclic:
            following += [position + runs for position in positions[:1]]
        elif life.stays:
            following += [runs]
        pairs = zip(positions, following, strict=False)
        return [Absence(life.tensor, after, before) for after, before in pairs if before > after + 1]
