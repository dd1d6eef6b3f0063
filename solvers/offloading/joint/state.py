"""One point of the joint search: a sequence of runs, what is away when, which updates run on the host.

    lives, flags ──life_levels──▶ rows of each life (kept) ──place, merge──▶ steps ──replay──▶ seconds

A change touches few lives; their rows are looked up or made once, all the rest is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Ints
from ....graphs.graph import Graph
from ....graphs.machine import Machine, Memory
from ....planner.replay.clock import TURNS
from ....planner.replay.instance import Instance, Ways
from ....planner.replay.replay import replay
from ....planner.residence.demand import add_workspace, fetches_of, occupied, start_times
from ....planner.residence.lives import Life, Use, lives, position_of, turn_length
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
from .assemble import FETCH, MOVE, merge, place


class Absence(NamedTuple):
    """Between two uses of a tensor on the device. before: beyond the runs' number for a use in the next turn;
    the number itself for the end of the turn."""

    life: int
    tensor: int
    after: int
    before: int


class Outcome(NamedTuple):
    """seconds: the period. excess: bytes above a limit, at worst. look_ahead, reserve: with which."""

    seconds: float
    excess: float
    look_ahead: float = 1.5
    reserve: float = 0.0


class _Rows(NamedTuple):
    """What one life adds. spans: moments on the device. start: memories when a turn starts, as bits."""

    moves: Any
    fetches: Any
    spans: tuple[tuple[int, int], ...]
    start: int


class State:
    """runs: with modes. away: per place where the tensor is meanwhile. tier: where it goes, if not to the
    host; set before it is sent. leave: per place before which run the copy down stands, if not at once.
    shift: per place of a use how many slots later its fetch stands than look-ahead and order of need say.
    Change them by `send`, `keep`, `delay`, `move` and `switch`, then `evaluate`.

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
        self.runs, self.smallest = list(runs), smallest
        self.away: dict[Place, Memory] = {}
        self.tier: dict[Place, Memory] = {}
        self.leave: dict[Place, int] = {}
        self.shift: dict[Place, int] = {}
        self.ways = Ways(graph)
        self.instance: Instance = self.ways.instance(machine, budget)
        self.turn = turn_length(len(self.runs))
        moving = graph.tensors.bytes > 0
        moving[_read_on_host(graph)] = True  # without bytes they have to be there too
        self.lives = [life for life in lives(graph, self.runs) if moving[life.tensor]]
        self.touching: dict[int, list[int]] = {}
        for number, life in enumerate(self.lives):
            for use in life.uses:
                self.touching.setdefault(position_of(use.moment), []).append(number)
        self.life_of = {
            (life.tensor, position_of(use.moment)): number
            for number, life in enumerate(self.lives)
            for use in life.uses
        }
        unused = [number for number, life in enumerate(self.lives) if life.cyclic and not life.uses]
        self.life_of.update({(self.lives[number].tensor, -1): number for number in unused})
        self._kept: dict[tuple[Any, ...], _Rows] = {}
        self._size_arrays()
        if all_away:
            self.away.update({(absence.tensor, absence.after): Memory.HOST for absence in absences(self)})
            self.away.update({(self.lives[number].tensor, -1): Memory.HOST for number in unused})
        for number in range(len(self.lives)):
            self._renew(number, fresh=True)

    # ── changes ─────────────────────────────────────────────────────────────────────────────────

    def send(self, places: Iterable[Place]) -> None:
        """Let tensors leave after these uses."""
        changed = list(places)
        self.away.update({where: self.tier.get(where, Memory.HOST) for where in changed})
        self._renew_all(self.life_of[where] for where in changed)

    def keep(self, places: Iterable[Place]) -> None:
        """Let tensors stay after these uses."""
        changed = [where for where in places if self.away.pop(where, None) is not None]
        self._renew_all(self.life_of[where] for where in changed)

    def delay(self, where: Place, slot: int | None) -> None:
        """Let the copy down for this absence stand before another run; None: at once."""
        _put(self.leave, where, slot)
        self._renew(self.life_of[where])

    def move(self, where: Place, shift: int | None) -> None:
        """Let the fetch for this use stand so many slots later, whatever the others do; None: as it comes."""
        _put(self.shift, where, shift)
        self._renew(self.life_of[where])

    def switch(self, positions: Iterable[int], mode: int) -> None:
        """Run what stands there in another mode, on the other side of the bus."""
        lives_touched: list[int] = []
        for position in positions:
            operation, _mode = self.runs[position]
            self.runs[position] = (operation, mode)
            lives_touched += self.touching.get(position, [])
            self._sequence[position] = self.ways.number[operation, mode]
        self.starts = np.array(start_times(self.graph, self.runs))
        for number in lives_touched:
            life = self.lives[number]
            life.uses = [self._moved(use) for use in life.uses]
        self._renew_all(lives_touched)

    def _moved(self, use: Use) -> Use:
        operation, mode = self.runs[position_of(use.moment)]
        modes = self.graph.operations.modes.get(operation, ())
        if not modes:
            return use
        on_host = mode > 0 and modes[mode - 1].on_host
        return use._replace(memory=Memory.HOST if on_host else Memory.DEVICE)

    def starts_on(self, tensor: int) -> int:
        """The memories where it lies at first, as bits, with every fetch in the turn of its use."""
        return int(self._starts[tensor])

    # ── what it comes to ────────────────────────────────────────────────────────────────────────

    @property
    def demand(self) -> int:
        """Device bytes at the worst moment with every fetch just before its use."""
        return int(self.curve.max(initial=0))

    def evaluate(self, look_ahead: float, reserve: float = 0.0) -> Outcome:
        steps, starts = self.steps(look_ahead, reserve)
        result = np.zeros(6)
        replay(self.instance, steps, starts, result, TURNS)
        return Outcome(float(result[0]), float(result[1]), look_ahead, reserve)

    def steps(self, look_ahead: float, reserve: float) -> tuple[Ints, NDArray[np.uint8]]:
        """Rows (verb, way or tensor, memory) and per tensor where it is at first."""
        used = self._fetches[self._fetches["use"] >= 0]
        fetches = used[np.argsort(used["use"], kind="stable")]
        moments = np.zeros(len(fetches), np.int64)
        cap = float(self.instance.limits[0]) - reserve
        place(fetches, self.starts, self.curve.copy(), min(look_ahead, 1e9), cap, moments)
        rows = np.zeros((len(self._moves) + 2 * len(fetches) + len(self.runs), 3), np.int64)
        starts = self._starts.copy()
        count = merge(self._moves, fetches, moments, self.turn, self._sequence, rows, starts)
        return rows[:count], starts

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

    # ── rows ────────────────────────────────────────────────────────────────────────────────────

    def _size_arrays(self) -> None:
        moves = [0, *np.cumsum([self._most_moves(number) for number in range(len(self.lives))]).tolist()]
        fetches = [0, *np.cumsum([len(life.uses) + 1 for life in self.lives]).tolist()]
        self._move_places, self._fetch_places = moves, fetches
        self._moves = np.zeros(moves[-1], MOVE)
        self._fetches = np.zeros(fetches[-1], FETCH)
        self._starts = np.where(self.graph.resident, 1, 0).astype(np.uint8)
        self.curve = np.zeros(self.turn, np.int64)
        add_workspace(self.curve, self.graph, self.runs)
        self._sequence = np.array([self.ways.number[run] for run in self.runs], np.int64)
        self.starts = np.array(start_times(self.graph, self.runs))
        self._spans: list[tuple[tuple[int, int], ...]] = [()] * len(self.lives)

    def _most_moves(self, number: int) -> int:
        """How many rows a life may have: copies and deletes in two memories, with the disk in three."""
        life = self.lives[number]
        modes = self.graph.operations.modes
        turns = any(self.runs[position_of(use.moment)][0] in modes for use in life.uses)
        moving = bool(absences_of(self, number)) or turns or life.cyclic
        return 6 * (len(life.uses) + 2) if moving else 2

    def _renew_all(self, numbers: Iterable[int]) -> None:
        for number in dict.fromkeys(numbers):
            self._renew(number)

    def _renew(self, number: int, *, fresh: bool = False) -> None:
        """Put the rows of a life in their places."""
        life = self.lives[number]
        rows = self._rows(number, life)
        size = int(self.graph.tensors.bytes[life.tensor])
        for low, high in () if fresh else self._spans[number]:
            self.curve[low:high] -= size
        for low, high in rows.spans:
            self.curve[low:high] += size
        self._spans[number] = rows.spans
        start, end = self._move_places[number], self._move_places[number + 1]
        self._moves["slot"][start:end] = -1
        self._moves[start : start + len(rows.moves)] = rows.moves
        start, end = self._fetch_places[number], self._fetch_places[number + 1]
        self._fetches["use"][start:end] = -1
        self._fetches[start : start + len(rows.fetches)] = rows.fetches
        if life.cyclic:
            self._starts[life.tensor] = rows.start

    def _rows(self, number: int, life: Life) -> _Rows:
        places = [(life.tensor, position_of(use.moment)) for use in life.uses] or [(life.tensor, -1)]
        wishes = tuple((self.away.get(w), self.leave.get(w), self.shift.get(w)) for w in places)
        key = (number, wishes, tuple(use.memory for use in life.uses))
        if key not in self._kept:
            away = {where: memory for where in places if (memory := self.away.get(where)) is not None}
            leave = {where: slot for where in places if (slot := self.leave.get(where)) is not None}
            self._kept[key] = self._made(Residence(self.runs, away, leave), life)
        return self._kept[key]

    def _made(self, residence: Residence, life: Life) -> _Rows:
        levels = life_levels(residence, life)
        device, host, _disk = levels
        steps = list(life_steps(life.tensor, levels, self.turn))
        read = {piece.start % self.turn // 2 for piece in host.pieces if piece.fetched}
        fetched = list(fetches_of(life, device, self.turn))
        slots = {fetch.use % self.turn // 2 for fetch in fetched}
        moves = [
            (item.slot, item.rank, item.order, *item.step)
            for item in steps
            if item.rank != PREFETCH and not (item.rank == READ and item.slot in slots)
        ]
        rows = np.zeros(len(fetched), FETCH)
        size = int(self.graph.tensors.bytes[life.tensor])
        for row, fetch in zip(rows, fetched, strict=True):
            from_disk = fetch.use // 2 in read
            earliest = max(0, fetch.earliest) if from_disk else fetch.earliest
            links = self.machine.links
            path = (links.h2d, links.disk_read) if from_disk else (links.h2d,)
            seconds = sum(link.seconds(float(size)) for link in path if link)
            row["tensor"], row["use"], row["earliest"] = life.tensor, fetch.use, earliest
            row["size"], row["seconds"], row["from_disk"] = size, seconds, from_disk
            row["shift"] = self.shift.get((life.tensor, position_of(fetch.use)), 0)
        start = sum(1 << memory for memory in memories_at_start(levels, self.turn))
        return _Rows(np.array(moves, MOVE), rows, tuple(occupied(life, device, self.turn)), start)


def _read_on_host(graph: Graph) -> list[int]:
    """What some mode reads or changes in host memory."""
    found: list[int] = []
    for operation, modes in graph.operations.modes.items():
        for mode in modes:
            inputs = graph.input_lists[operation]
            found += [*inputs, *mode.writes] if mode.on_host else mode.reads_host
    return found


def _put(table: dict[Place, int], where: Place, value: int | None) -> None:
    if value is None:
        table.pop(where, None)
    else:
        table[where] = value


def absences(state: State) -> list[Absence]:
    """Between which uses on the device a tensor can be away: not between a run and the next."""
    return [absence for number in range(len(state.lives)) for absence in absences_of(state, number)]


def absences_of(state: State, number: int) -> list[Absence]:
    """Those of one life."""
    life, runs = state.lives[number], len(state.runs)
    fixed = state.graph.resident[life.tensor] and not life.cyclic
    if fixed or state.graph.tensors.bytes[life.tensor] < state.smallest:
        return []
    uses = [use for use in life.uses if use.memory == Memory.DEVICE]
    complete = next((i for i, use in enumerate(uses) if use.changes), 0) if not life.cyclic else 0
    positions = [position_of(use.moment) for use in uses[complete:]]
    following = positions[1:]
    if life.cyclic:
        following += [position + runs for position in positions[:1]]
    elif life.stays:
        following += [runs]
    pairs = zip(positions, following, strict=False)
    return [Absence(number, life.tensor, after, before) for after, before in pairs if before > after + 1]
