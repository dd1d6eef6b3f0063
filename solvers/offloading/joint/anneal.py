"""Annealing over what is away, and which updates run on the host, for a fixed sequence of runs.

A move lets a tensor stay that was away, sending others away where the memory is tightest until all fits; or
sends one away; or moves an update across the bus; or changes how early prefetches start. It is judged by the
compiled simulator, and taken back by the opposite changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from statistics import median

import numpy as np

from ....graphs.machine import Memory
from ....planner.residence.residence import Place
from .fill import spans
from .state import Outcome, State, absences

HOT, COLD = 0.5, 5e-3
"""The temperature at both ends, in what a move changes at first (the median of those that make it slower)."""

_SAMPLE = 40

_VICTIMS = 6
_FARTHEST = 6
_PLACE = 0.2
"""The share of moves that change where a transfer stands, and nothing else."""
_LOOK_AHEADS = (0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 6.0)


@dataclass(frozen=True)
class Snapshot:
    away: dict[Place, Memory]
    leave: dict[Place, int]
    shift: dict[Place, int]
    modes: dict[int, int]
    outcome: Outcome


class Anneal:
    """state: changed in place. host_modes: per operation its mode on the host."""

    def __init__(self, state: State, outcome: Outcome, host_modes: dict[int, int], seed: int) -> None:
        self.state, self.now, self.random = state, outcome, Random(seed)
        self.switchable = {p: host_modes[o] for p, (o, _m) in enumerate(state.runs) if o in host_modes}
        self._list_absences()
        self.best = self.snapshot()
        self.tried = 0

    def run(self, progress: Callable[[], float]) -> None:
        """Until `progress` reaches 1. The best is then in `state`."""
        change = self._usual_change()
        while (done := progress()) < 1.0 and self.absences:
            self.tried += 1
            temperature = HOT * (COLD / HOT) ** done * change
            undo = self._move()
            if undo is None:
                continue
            outcome = self.state.evaluate(self.look_ahead, self.reserve)
            worse = outcome.seconds - self.now.seconds
            if outcome.excess or (
                worse > 0 and self.random.random() >= exp(-worse / max(temperature, 1e-300))
            ):
                undo()
                continue
            self.now = outcome
            if outcome.seconds < self.best.outcome.seconds * (1 - 1e-9):
                self.best = self.snapshot()
        self.restore(self.best)

    def _usual_change(self) -> float:
        """Seconds; the moves are taken back."""
        slower: list[float] = []
        for _ in range(_SAMPLE if self.absences else 0):
            undo = self._move()
            if undo is not None:
                outcome = self.state.evaluate(self.look_ahead, self.reserve)
                if outcome.seconds > self.now.seconds * (1 + 1e-9):
                    slower.append(outcome.seconds - self.now.seconds)
                undo()
        return median(slower) if slower else 1e-3 * self.now.seconds

    def snapshot(self) -> Snapshot:
        modes = {position: self.state.runs[position][1] for position in self.switchable}
        state = self.state
        return Snapshot(dict(state.away), dict(state.leave), dict(state.shift), modes, self.now)

    def restore(self, snapshot: Snapshot) -> None:
        state = self.state
        for position, mode in snapshot.modes.items():
            if state.runs[position][1] != mode:
                state.switch([position], mode)
        state.keep([where for where in state.away if where not in snapshot.away])
        state.send([where for where in snapshot.away if where not in state.away])
        for change, now, then in (
            (state.delay, state.leave, snapshot.leave),
            (state.move, state.shift, snapshot.shift),
        ):
            for where in [*now, *then]:
                if now.get(where) != then.get(where):
                    change(where, then.get(where))
        self.now = snapshot.outcome

    # ── moves ───────────────────────────────────────────────────────────────────────────────────

    @property
    def look_ahead(self) -> float:
        return self.now.look_ahead

    @property
    def reserve(self) -> float:
        return self.now.reserve

    def _move(self) -> Callable[[], None] | None:
        """Change the state; how to take it back, None where nothing was changed."""
        draw = self.random.random()
        if draw < 0.02:
            return self._time()
        if draw > 1.0 - _PLACE:
            return self._place_otherwise()
        if draw < 0.15 and self.switchable:
            return self._switch()
        number = self.random.randrange(len(self.absences))
        moved = [number]
        if draw < 0.45:
            moved = self._of_life[self.absences[number].life]
        if self._place(number) not in self.state.away:
            return self._leave([i for i in moved if self._place(i) not in self.state.away])
        moved = [i for i in moved if self._place(i) in self.state.away]
        if draw < 0.3:
            return self._exchange(moved)
        return self._stay(moved)

    def _place(self, number: int) -> Place:
        return self.absences[number].tensor, self.absences[number].after

    def _time(self) -> Callable[[], None]:
        before = self.now
        self.now = before._replace(look_ahead=self.random.choice(_LOOK_AHEADS))

        def undo() -> None:
            self.now = before

        return undo

    def _switch(self) -> Callable[[], None] | None:
        position = self.random.choice(list(self.switchable))
        before = self.state.runs[position][1]
        self.state.switch([position], 0 if before else self.switchable[position])

        def undo() -> None:
            self.state.switch([position], before)

        if self.state.demand > self.state.instance.limits[0]:
            undo()
            return None
        return undo

    def _place_otherwise(self) -> Callable[[], None] | None:
        """Let a copy down, or a fetch, stand elsewhere."""
        absence, state = self.random.choice(self.absences), self.state
        out = (absence.tensor, absence.after)
        if out not in state.away:
            return None
        runs = len(state.runs)
        if self.random.random() < 0.3:
            before = state.leave.get(out)
            slot = (absence.after + 1 + self.random.randint(-_FARTHEST, _FARTHEST)) % (runs + 1)
            state.delay(out, None if slot == absence.after + 1 else slot)
            return lambda: state.delay(out, before)
        back = (absence.tensor, absence.before % runs)
        if back not in state.life_of:
            return None
        before = state.shift.get(back)
        shift = (before or 0) + self.random.randint(-_FARTHEST, _FARTHEST)
        state.move(back, shift or None)
        return lambda: state.move(back, before)

    def _leave(self, numbers: Sequence[int]) -> Callable[[], None]:
        places = [self._place(number) for number in numbers]
        self.state.send(places)
        return lambda: self.state.keep(places)

    def _exchange(self, numbers: Sequence[int]) -> Callable[[], None] | None:
        """Let these stay and another tensor leave for as much."""
        other = self._of_life[self.random.choice(self.absences).life]
        leaving = [i for i in other if self._place(i) not in self.state.away and i not in numbers]
        sent = self._leave(leaving)
        kept = self._stay(numbers)
        if kept is None:
            sent()
            return None

        def undo() -> None:
            kept()
            sent()

        return undo

    def _stay(self, numbers: Sequence[int]) -> Callable[[], None] | None:
        """Keep these on the device; while that is too much, send another away that is there at the worst
        moment."""
        kept = [self._place(number) for number in numbers]
        self.state.keep(kept)
        sent: list[Place] = []

        def undo() -> None:
            self.state.keep(sent)
            self.state.send(kept)

        limit = self.state.instance.limits[0]
        while self.state.demand > limit:
            worst = int(self.state.curve.argmax())
            there = [i for i in self._covering(worst) if i not in numbers]
            if not there or len(sent) == _VICTIMS:
                undo()
                return None
            victim = self._place(self.random.choice(there))
            self.state.send([victim])
            sent.append(victim)
        return undo

    def _covering(self, moment: int) -> Iterator[int]:
        """The tensors that could leave and are there at a moment."""
        inside = (self._starts <= moment) & (moment < self._ends)
        around = (self._starts <= moment + self.state.turn) & (moment + self.state.turn < self._ends)
        for number in np.flatnonzero(inside | around).tolist():
            if self._place(number) not in self.state.away:
                yield number

    def _list_absences(self) -> None:
        self.absences = absences(self.state)
        self._of_life: dict[int, list[int]] = {}
        for number, absence in enumerate(self.absences):
            self._of_life.setdefault(absence.life, []).append(number)
        ends = [list(spans(self.state, absence)) for absence in self.absences]
        self._starts = np.array([parts[0][0] for parts in ends], np.int64)
        lengths = [sum(high - low for low, high in parts) for parts in ends]
        self._ends = self._starts + np.array(lengths, np.int64)
