"""One point of the joint search: which runs take place, what is away when, which updates run on the host.

    runs, flags ──lives_of, life_levels──▶ rows of each tensor (kept) ──assemble──▶ steps ──replay──▶ seconds

A change touches few tensors; their rows are looked up or made once, all the rest is compiled. Every change is
written down, and taken back by `rollback`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Floats, Ints
from ....graphs.graph import Graph
from ....graphs.machine import Machine, Memory
from ....planner.replay.clock import TURNS
from ....planner.replay.instance import Instance, Ways
from ....planner.replay.replay import replay, stalls
from ....planner.residence.demand import fetches_of, occupied
from ....planner.residence.lives import (
    Life,
    Touch,
    lives_of,
    position_of,
    run_moment,
    touches_of,
    turn_length,
)
from ....planner.residence.residence import (
    PREFETCH,
    READ,
    Place,
    Residence,
    life_levels,
    life_steps,
    memories_at_start,
)
from ....planner.schedule.schedule import Initial, Schedule, Verb
from ....planner.schedule.sequence import Run
from .assemble import FETCH, MOVE, assemble
from .rows import Rows

ABSENT = -1
"""The mode of a run that may take place there, and does not."""


_SAID = (0, 1, 2, 3, 4)
"""The memories, as bits, in which a schedule can say that a tensor starts."""

ABSENCE = np.dtype([(name, np.int64) for name in ("tensor", "after", "before")])


_MOST_KEPT = 100_000
"""Rows of one tensor that are kept to be used again: some hundred MB at most."""


class Absence(NamedTuple):
    """Between two uses of a tensor on the device. before: beyond the runs' number for a use in the next turn;
    the number itself for the end of the turn."""

    tensor: int
    after: int
    before: int

    @property
    def place(self) -> Place:
        return self.tensor, self.after


class Outcome(NamedTuple):
    """seconds: the period. excess: bytes above a limit, at worst; ∞ where a tensor would start where no
    schedule can say. look_ahead, reserve: with which."""

    seconds: float
    excess: float
    look_ahead: float = 1.5
    reserve: float = 0.0


class _Made(NamedTuple):
    """What one tensor adds. spans, host_spans: moments on the device and on the host. start: memories when a
    turn starts, as bits. absences: in which it can leave."""

    moves: Any
    fetches: Any
    spans: tuple[tuple[int, int], ...]
    host_spans: tuple[tuple[int, int], ...]
    start: int
    absences: Any


class State:
    """runs: with modes, ABSENT ones among them. away: per place where the tensor is meanwhile. leave: per
    place before which run the copy down stands, if not at once. shift: per place of a use how many slots
    later its fetch stands than look-ahead and order of need say. Change them by `send`, `keep`, `delay`,
    `move` and `switch`, then `evaluate`. A place that is no absence as the runs are now has no effect, until
    it is one again.

    all_away: whatever can leave leaves, at first. smallest: bytes of a tensor that can leave.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        budget: int,
        runs: Iterable[Run],
        *,
        all_away: bool = False,
        smallest: int = 1,
    ) -> None:
        self.graph, self.machine, self.budget = graph, machine, budget
        self.runs, self._smallest = list(runs), smallest
        self.away: dict[Place, Memory]
        self.leave: dict[Place, int]
        self.shift: dict[Place, int]
        self.ways = Ways(graph)
        self.instance: Instance = self.ways.instance(machine, budget)
        self.turn = turn_length(len(self.runs))
        self._sizes: list[int] = graph.tensors.bytes.tolist()
        self._known: dict[Run, dict[int, Touch]] = {}
        self._touched = self._positions()
        self._kept: dict[tuple[Any, ...], _Made] = {}
        self._journal: list[tuple[dict[Place, Any] | None, Place, Any]] = []
        self.reset(self.runs, {}, {}, {})
        if all_away:
            self.send_all()

    # ── changes ─────────────────────────────────────────────────────────────────────────────────

    def send(self, places: Iterable[Place], to: Memory = Memory.HOST) -> None:
        """Let tensors leave after these uses."""
        self._change(self.away, dict.fromkeys(places, to))

    def send_as(self, away: Mapping[Place, Memory]) -> None:
        """Let tensors leave, each to where it says."""
        self._change(self.away, away)

    def keep(self, places: Iterable[Place]) -> None:
        """Let tensors stay after these uses."""
        self._change(self.away, dict.fromkeys(places))

    def delay(self, where: Place, slot: int | None) -> None:
        """Let the copy down for this absence stand before another run; None: at once."""
        self._change(self.leave, {where: slot})

    def move(self, where: Place, shift: int | None) -> None:
        """Let the fetch for this use stand so many slots later, whatever the others do; None: as it comes."""
        self._change(self.shift, {where: shift})

    def switch(self, modes: Mapping[int, int]) -> None:
        """Run what stands at these positions in other modes, on the other side of the bus, or not at all."""
        touched = set[int]()
        for position, mode in modes.items():
            operation, before = self.runs[position]
            if before != mode:
                self._journal.append((None, (operation, position), before))
                touched.update(self._put_run(position, (operation, mode)))
        self._renew_all(touched)

    def mark(self) -> int:
        """For `rollback`."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Take back what was changed since then."""
        touched = set[int]()
        while len(self._journal) > mark:
            table, where, before = self._journal.pop()
            if table is None:
                touched.update(self._put_run(where[1], (self.runs[where[1]][0], before)))
            else:
                _put(table, where, before)
                touched.add(where[0])
        self._renew_all(touched)

    def reset(
        self,
        runs: Sequence[Run],
        away: Mapping[Place, Memory],
        leave: Mapping[Place, int],
        shift: Mapping[Place, int],
    ) -> None:
        """Begin anew with these decisions, whatever is half done. runs: the same in other modes."""
        self.runs, self.away, self.leave, self.shift = list(runs), dict(away), dict(leave), dict(shift)
        self.forget()
        self._read_runs()
        self._clear(len(self.graph.tensors))
        self._renew_all(self._touched)

    def forget(self) -> None:
        """What was changed until now stays."""
        self._journal.clear()

    def _change(self, table: dict[Place, Any], values: Mapping[Place, Any]) -> None:
        touched = set[int]()
        for where, value in values.items():
            before = table.get(where)
            if before != value:
                self._journal.append((table, where, before))
                _put(table, where, value)
                touched.add(where[0])
        self._renew_all(touched)

    def _put_run(self, position: int, run: Run) -> Iterable[int]:
        """What the operation touches."""
        moment = run_moment(position)
        self.curve[moment] += self._workspace(run) - self._workspace(self.runs[position])
        self.runs[position] = run
        self.sequence[position] = self._way(run)
        self._durations[position] = self._seconds(run)
        self._lined_up, self._current = False, None
        return self._touches((run[0], 0)).keys()

    # ── what it comes to ────────────────────────────────────────────────────────────────────────

    @property
    def demand(self) -> int:
        """Device bytes at the worst moment with every fetch just before its use."""
        return int(self.curve.max(initial=0))

    @property
    def starts(self) -> Floats:
        """When each run starts on the compute queue were nothing waited for, and when the last ends."""
        self._line_up()
        return self._starts

    @property
    def absences(self) -> list[Absence]:
        """Between which uses on the device a tensor can be away: not between a run and the next."""
        return [Absence(*row) for row in self.absence_rows.tolist()]

    @property
    def absence_rows(self) -> Any:
        """The same as an array: fields tensor, after, before."""
        if self._current is None:
            rows = self._absences.used
            self._current = rows[(rows["after"] >= 0) & self._useful(rows)]
        return self._current

    def absences_of(self, tensor: int) -> list[Absence]:
        if tensor not in self._made:  # it has no bytes
            return []
        found = self._made[tensor].absences
        return [Absence(*row) for row in found[self._useful(found)].tolist()]

    def _useful(self, rows: Any) -> NDArray[np.bool_]:
        """The tensor is large enough, and some run takes place between the two, as always between turns."""
        self._line_up()
        before, runs = rows["before"], len(self.runs)
        apart = (before > runs) | (self._before[np.minimum(before, runs)] > self._before[rows["after"] + 1])
        return apart & (self.graph.tensors.bytes[rows["tensor"]] >= self._smallest)

    @property
    def smallest(self) -> int:
        """Bytes of a tensor that can leave."""
        return self._smallest

    @smallest.setter
    def smallest(self, size: int) -> None:
        self._smallest, self._current = size, None

    def send_all(self) -> None:
        """Let leave whatever can."""
        unused = [(x, -1) for x, positions in self._touched.items() if not positions and self.cyclic[x]]
        self.send([*(absence.place for absence in self.absences), *unused])

    def present(self, tensor: int) -> list[tuple[int, Touch]]:
        """The runs that touch it, by position, and how."""
        found: list[tuple[int, Touch]] = []
        for position in self._touched.get(tensor, ()):
            run = self.runs[position]
            touch = self._touches(run).get(tensor) if run[1] != ABSENT else None
            if touch is not None:
                found.append((position, touch))
        return found

    def starts_on(self, tensor: int) -> int:
        """The memories where it lies at first, as bits, with every fetch in the turn of its use."""
        return int(self._initial[tensor])

    def evaluate(self, look_ahead: float, reserve: float = 0.0) -> Outcome:
        result = self._replayed(look_ahead, reserve)
        return Outcome(float(result[0]), inf if self._unsaid else float(result[1]), look_ahead, reserve)

    def peaks(self, look_ahead: float) -> Floats:
        """Bytes at most in each memory, and pinned."""
        return self._replayed(look_ahead, 0.0)[2:]

    def _replayed(self, look_ahead: float, reserve: float) -> Floats:
        steps, starts = self.steps(look_ahead, reserve)
        result = np.zeros(6)
        replay(self.instance, steps, starts, result, TURNS)
        return result

    def waits(self, outcome: Outcome) -> Floats:
        """Per run the seconds that the device waits for it; 0 for those on the host."""
        found = np.zeros(len(self.runs))
        steps, starts = self.steps(outcome.look_ahead, outcome.reserve)
        seconds = np.zeros(len(steps))
        stalls(self.instance, steps, starts, seconds, TURNS)
        computed = [place for place, run in enumerate(self.runs) if run[1] != ABSENT and self._on_device(run)]
        found[computed] = seconds[: len(computed)]
        return found

    def steps(self, look_ahead: float, reserve: float) -> tuple[Ints, NDArray[np.uint8]]:
        """Rows (verb, way or tensor, memory) and per tensor where it is at first."""
        starts = self._initial.copy()
        device, host = self.instance.limits[:2].tolist()
        most = len(self._moves.used) + 2 * len(self._fetches.used) + len(self.runs)
        steps = np.empty((most, 3), np.int64)
        count = assemble(
            self._moves.used,
            self._fetches.used,
            self.sequence,
            self.starts,
            (self.curve, self.host_curve),
            (device - reserve, host),
            min(look_ahead, 1e9),
            starts,
            steps,
        )
        return steps[:count], starts

    def schedule(self, outcome: Outcome) -> Schedule:
        """The schedule that was evaluated."""
        steps, starts = self.steps(outcome.look_ahead, outcome.reserve)
        runs = np.array(self.ways.runs, np.int64).reshape(-1, 2)
        computes = steps[:, 0] == Verb.COMPUTE
        ways = steps[computes, 1]
        steps[computes, 1], steps[computes, 2] = runs[ways, 0], runs[ways, 1]
        at = {bits: frozenset(np.flatnonzero(starts == bits).tolist()) for bits in (2, 4, 3)}
        columns = steps[:, 0].astype(np.uint8), steps[:, 1].astype(np.int32), steps[:, 2].astype(np.int32)
        return Schedule(*columns, Initial(at[2], at[4], at[3]))

    @property
    def residence(self) -> Residence:
        """The decisions alone, by the runs that take place."""
        present = [position for position, run in enumerate(self.runs) if run[1] != ABSENT]
        number = {-1: -1, **{position: index for index, position in enumerate(present)}}
        away = {(x, number[after]): to for (x, after), to in self.away.items() if after in number}
        return Residence([self.runs[position] for position in present], away)

    # ── runs ────────────────────────────────────────────────────────────────────────────────────

    def _positions(self) -> dict[int, list[int]]:
        """Per tensor that takes part: the runs, ABSENT ones too, that touch it in some mode."""
        graph = self.graph
        self.cyclic: list[bool] = graph.persistent.tolist()
        moving = graph.tensors.bytes > 0
        moving[_read_on_host(graph)] = True  # without bytes they have to be there too
        there = moving & graph.resident
        there[[x for x in graph.results if moving[x]]] = True
        touched: dict[int, list[int]] = {x: [] for x in np.flatnonzero(there).tolist()}
        for position, (operation, _mode) in enumerate(self.runs):
            for x in self._touches((operation, 0)):
                if moving[x]:
                    touched.setdefault(x, []).append(position)
        return touched

    def _touches(self, run: Run) -> dict[int, Touch]:
        if run not in self._known:
            self._known[run] = touches_of(self.graph, *run)
        return self._known[run]

    def _read_runs(self) -> None:
        runs = self.runs
        self.sequence = np.array([self._way(run) for run in runs], np.int64)
        self._durations = np.array([self._seconds(run) for run in runs], np.float64)
        self._starts, self._before = np.zeros(len(runs) + 1), np.zeros(len(runs) + 1, np.int64)
        self._lined_up = False
        self.curve = np.zeros(self.turn, np.int64)
        self.host_curve = np.zeros(self.turn, np.int64)
        self.curve[1::2] = [self._workspace(run) for run in runs]

    def _line_up(self) -> None:
        if not self._lined_up:
            np.cumsum(self._durations, out=self._starts[1:])
            np.cumsum(self.sequence != ABSENT, out=self._before[1:])
            self._lined_up = True

    def _way(self, run: Run) -> int:
        return ABSENT if run[1] == ABSENT else self.ways.number[run]

    def _on_device(self, run: Run) -> bool:
        operation, mode = run
        return mode == 0 or (mode > 0 and not self.graph.operations.modes[operation][mode - 1].on_host)

    def _seconds(self, run: Run) -> float:
        return self.graph.seconds(*run) if self._on_device(run) else 0.0

    def _workspace(self, run: Run) -> int:
        return self.graph.workspace(*run) if self._on_device(run) else 0

    # ── rows ────────────────────────────────────────────────────────────────────────────────────

    def _clear(self, tensors: int) -> None:
        self._moves, self._fetches = Rows(MOVE, "slot", tensors), Rows(FETCH, "use", tensors)
        self._initial = np.where(self.graph.resident, 1, 0).astype(np.uint8)
        self._unsaid, self._made = set[int](), dict[int, _Made]()
        self._absences, self._current = Rows(ABSENCE, "after", tensors), None

    def _renew_all(self, tensors: Iterable[int]) -> None:
        for x in sorted(tensors):
            if x in self._touched:
                self._renew(x)

    def _renew(self, x: int) -> None:
        """Put the rows of a tensor in their places."""
        made, before, size = self._rows(x), self._made.get(x), self._sizes[x]
        if made is before:
            return
        for curve, old, new in (
            (self.curve, before.spans if before else (), made.spans),
            (self.host_curve, before.host_spans if before else (), made.host_spans),
        ):
            for low, high in old:
                curve[low:high] -= size
            for low, high in new:
                curve[low:high] += size
        self._moves.put(x, made.moves)
        self._fetches.put(x, made.fetches)
        if self.cyclic[x]:
            self._initial[x] = made.start
            (self._unsaid.discard if made.start in _SAID else self._unsaid.add)(x)
        self._absences.put(x, made.absences)
        self._current = None
        self._made[x] = made

    def _rows(self, x: int) -> _Made:
        positions = self._touched[x]
        places = [(x, position) for position in positions] or [(x, -1)]
        modes = tuple([self.runs[position][1] for position in positions])
        wishes = tuple([(self.away.get(w), self.leave.get(w), self.shift.get(w)) for w in places])
        key = (x, modes, wishes)
        if key not in self._kept:
            if len(self._kept) == _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = self._make(x, places)
        return self._kept[key]

    def _make(self, x: int, places: list[Place]) -> _Made:
        away = {where: memory for where in places if (memory := self.away.get(where)) is not None}
        leave = {where: slot for where in places if (slot := self.leave.get(where)) is not None}
        residence = Residence(self.runs, away, leave)
        touches = [(run_moment(position), touch) for position, touch in self.present(x)]
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
            fetches += [self._fetch(x, *fetch[1:], fetch.use // 2 in read) for fetch in fetched]
            spans += occupied(life, device, self.turn)
            host_spans += occupied(replace(life, born=self.turn), host, self.turn)
            absences += self._absences_of(life)
            if life.cyclic:
                start = sum(1 << memory for memory in memories_at_start(levels, self.turn))
        return _Made(
            np.array(moves, MOVE),
            np.array(fetches, FETCH),
            tuple(spans),
            tuple(host_spans),
            start,
            np.array(absences, ABSENCE),
        )

    def _fetch(self, x: int, use: int, earliest: int, from_disk: bool) -> tuple[Any, ...]:
        links, size = self.machine.links, self._sizes[x]
        seconds = links.h2d.seconds(float(size)) if links.h2d else 0.0
        read = links.disk_read.seconds(float(size)) if from_disk and links.disk_read else 0.0
        shift = self.shift.get((x, position_of(use)), 0)
        return x, use, max(0, earliest) if from_disk else earliest, size, shift, seconds, read, from_disk

    def _absences_of(self, life: Life) -> list[Absence]:
        fixed = self.graph.resident[life.tensor] and not life.cyclic
        if fixed:
            return []
        uses = [use for use in life.uses if use.memory == Memory.DEVICE]
        complete = next((i for i, use in enumerate(uses) if use.changes), 0) if not life.cyclic else 0
        positions = [position_of(use.moment) for use in uses[complete:]]
        following = positions[1:]
        if life.cyclic:
            following += [position + len(self.runs) for position in positions[:1]]
        elif life.stays:
            following += [len(self.runs)]
        pairs = zip(positions, following, strict=False)
        return [Absence(life.tensor, after, before) for after, before in pairs if before > after + 1]


def _read_on_host(graph: Graph) -> list[int]:
    """What some mode reads, changes or makes in host memory."""
    found: list[int] = []
    for operation, modes in graph.operations.modes.items():
        for mode in modes:
            inputs = graph.input_lists[operation]
            found += [*(inputs if mode.on_host else mode.reads_host), *mode.made_on_host]
    return found


def _put(table: dict[Place, Any], where: Place, value: Any) -> None:
    if value is None:
        table.pop(where, None)
    else:
        table[where] = value
