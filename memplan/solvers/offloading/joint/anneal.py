"""Annealing over what is recomputed, what is offloaded, and which updates run on the host.

A move keeps a tensor that was offloaded, and offloads others where memory is tightest until all fits; or
offloads one; or frees one to be recomputed, or keeps it instead; or moves an update across the bus; or
changes when transfers run. Some are sought where the device waits. A move is timed by the compiled
simulator, and undone by the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import median

import numpy as np

from ....graphs.machine import Memory
from ....planner.schedule.schedule import DEFAULT_MODE
from ....planner.schedule.sequence import Run
from ...annealing import acceptance, temperature_at
from .alternatives import take_place
from .disk_spill import has_disk, may_lie_below
from .fill import ends_of
from .parts import Decisions, OffloadInterval
from .recompute_moves import RecomputeMoves
from .stalls import Stalls
from .start import together
from .state import State, StateFigures
from .timeline import ABSENT

HOT, WARM, HOT_IF_MADE_AGAIN, COLD = 0.5, 0.15, 0.03, 5e-3
"""Temperatures, relative to what a move changes at first (the median of those that make it slower). If much
can be recomputed, refining a start leads farther than forgetting it. Else the first annealings begin at HOT,
and WARM is where the best of them continues. All end at COLD."""

_HOTTEST_IF_MADE_AGAIN, _HOTTEST_COLD = 3e-4, 5e-6
"""Upper limits of these two, relative to the period. If tensors are few and large, most moves change much,
and a temperature that fits them accepts all small losses, many of which lead far off."""

_HEATS, _HEAT = 4, 0.06
"""Number of annealings from the start if nothing can be recomputed, and the share of the time for each,
before the best of them continues. They end far apart, and the first moves decide where."""

_ELSEWHERE = 0.05
"""Weight of a busy second of links, disks or the CPU, compared with one of the period. Needless work there
slows nothing down now, but stands in the way of what comes next."""

_SAMPLE = 40

_VICTIMS = 6
_FARTHEST = 6
_TIME, _UPDATE, _AGAIN, _DISK, _PLACE, _OVERLAP = 0.02, 0.13, 0.3, 0.1, 0.2, 0.15
"""Shares of moves that change how early fetches start; where an update runs; what is recomputed; whether host
or disk holds something; when a transfer runs; and when a collective does. The remaining moves offload a
tensor or keep it."""

_STALL = 0.2
"""Share of the moves that recompute, offload or keep for which the tensor is sought where the device waits
(stalls.py)."""

_WIDE = 0.2
"""The share of transfers placed otherwise that go farther: up to half an iteration, every length as
likely."""

_DOWN, _READ = 0.3, 0.5
"""Shares of these that are copies down; and of the others, if the tensor is on the disk, reads from there."""

_WHOLE, _EXCHANGE = 0.3, 0.15
"""Shares of the rest that concern all intervals of a tensor, and
of those in which another tensor leaves instead.
"""

_DEEPER = 0.3
"""Share of activations that are offloaded to the disk, if anything is."""

_LOOK_AHEADS = (0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 6.0)
_RESERVES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
"""Bytes of the device that early fetches leave free, relative to the largest tensor that can be offloaded, so
that nothing has to wait for a copy to the host that is still under way."""

_IN_TURN = 0.5
"""Share of the moves of an update across the bus in which another one comes the other way, if it is there."""

_REORDER = 0.3
"""Share of the moves of an update on the CPU that change its place in the queue instead."""

_LATE = 0.3
"""Probability that an update which moves to the CPU is late there."""

_AROUND = 0.8
"""Probability that a weight or state whose update moves to the device is offloaded around it."""


@dataclass(frozen=True)
class Snapshot:
    runs: list[Run]
    decided: Decisions
    outcome: StateFigures


class Anneal:
    """Simulated annealing of one state.

    state: changed in place. modes: per operation the other variant in which its first run may take place.
    """

    def __init__(self, state: State, outcome: StateFigures, modes: dict[int, int], seed: int) -> None:
        self.state, self.now, self.random = state, outcome, Random(seed)
        self.disk = has_disk(state) and any(to >= Memory.DISK for to in state.offloaded.values())
        self.recomputed, self.stalls = RecomputeMoves(state, self.random), Stalls(state, self.random)
        places = [p for p in range(len(state.runs)) if p not in self.recomputed.optional]
        self.switchable = {p: modes[o] for p in places if (o := state.runs[p][0]) in modes}
        positions: dict[int, list[int]] = {}
        for p in self.switchable:
            positions.setdefault(state.runs[p][0], []).append(p)
        # Of an operation's positions the first is in backward, the last at the end (update_order.py).
        self.sides = [[positions[o] for o in group] for group in together(state.graph, positions)]
        self.largest = state.largest
        self.best = self.snapshot()
        self.tried = 0
        state.forget()

    def run(self, progress: Callable[[], float]) -> None:
        """Anneal until `progress` reaches 1. The best is then in `state`."""
        if self.recomputed.optional:
            self.cool(progress)
            return
        first = self.snapshot()
        for number in range(_HEATS):
            self.cool(part_of(progress, number * _HEAT, (number + 1) * _HEAT))
            self.restore(first if number < _HEATS - 1 else self.best)
        self.cool(part_of(progress, _HEATS * _HEAT, 1.0), WARM)

    def cool(self, progress: Callable[[], float], warm: float = HOT) -> None:
        """Anneal once, from the current state.

        warm: initial temperature if nothing can be recomputed, in units as HOT.
        """
        change, period = self._usual_change, self.now.seconds
        hot = warm * change
        if self.recomputed.optional:
            hot = min(HOT_IF_MADE_AGAIN * change, _HOTTEST_IF_MADE_AGAIN * period)
        self._cool(progress, hot, min(COLD * change, _HOTTEST_COLD * period))
        self.restore(self.best)

    def _cool(self, progress: Callable[[], float], hot: float, cold: float) -> None:
        """Anneal once between two temperatures.

        progress: of this cooling alone. hot, cold: seconds, at first and at last.
        """
        while (done := progress()) < 1.0 and (len(self.state.interval_rows) or self.recomputed.optional):
            self.tried += 1
            temperature = temperature_at(done, hot, cold)
            before = self.now
            if not self._move():
                self._undo(before)
                continue
            outcome = self.state.evaluate(self.now.look_ahead, self.now.reserve)
            worse = _worth(outcome) - _worth(before)
            # What is above a limit is never accepted, whatever its seconds.
            if outcome.excess or (worse > 0 and self.random.random() >= acceptance(worse, temperature)):
                self._undo(before)
                continue
            self.now = outcome
            self.state.forget()
            if outcome.seconds < self.best.outcome.seconds * (1 - 1e-9):
                self.best = self.snapshot()

    def _undo(self, before: StateFigures) -> None:
        self.state.rollback(0)
        self.now = before

    @cached_property
    def _usual_change(self) -> float:
        """Return the median seconds by which moves from the first state make it slower.

        The moves are undone.
        """
        slower: list[float] = []
        before = self.now
        for _ in range(_SAMPLE if len(self.state.interval_rows) else 0):
            if self._move():
                outcome = self.state.evaluate(self.now.look_ahead, self.now.reserve)
                if outcome.seconds > before.seconds * (1 + 1e-9):
                    slower.append(outcome.seconds - before.seconds)
            self._undo(before)
        return median(slower) if slower else 1e-3 * self.now.seconds

    def snapshot(self) -> Snapshot:
        state = self.state
        return Snapshot(list(state.runs), state.decided.copy(), self.now)

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot, also from a move that was interrupted half way."""
        self.state.reset(snapshot.runs, snapshot.decided)
        self.now = snapshot.outcome

    # ── moves: whether the state was changed as meant; if not, it is to be rolled back ────────────

    def _move(self) -> bool:
        draw = self.random.random()
        for share, move in (
            (_TIME, self._time),
            (_UPDATE * bool(self.sides), self._switch),
            (_AGAIN * bool(self.recomputed.optional), self._recompute_more),
            (_DISK * self.disk, self._lie_elsewhere),
            (_PLACE, self._place_otherwise),
            (_OVERLAP * bool(self.state.groups), self._overlap),
        ):
            # The draw falls into one of consecutive shares; what is left over is the usual move.
            if draw < share:
                return move()
            draw -= share
        return self._leave_or_stay()

    def _time(self) -> bool:
        """Change how early fetches start, or how many bytes they leave free."""
        if self.random.random() < 0.5:
            self.now = self.now._replace(look_ahead=self.random.choice(_LOOK_AHEADS))
        else:
            self.now = self.now._replace(reserve=self.random.choice(_RESERVES) * self.largest)
        return True

    def _switch(self) -> bool:
        """Move an update to the other side of the bus, with those that change the same weight.

        An update that moves to the device has the tensors that it changes fetched for it, and offloaded
        after.
        """
        first, second = self.random.choice(self.sides), self.random.choice(self.sides)
        side = self._side(first)
        if side is None:
            return False
        if side and len(first[0]) > 1 and self.random.random() < _REORDER:
            return self._fit(self._put_at(first, self._is_late(first) - 1, on_host=True))
        changed = self._move_across(first, side)
        # What keeps the CPU as busy as it was is accepted sooner.
        if self.random.random() < _IN_TURN and self._side(second) == (not side):
            changed |= self._move_across(second, not side)
        return self._fit(changed)

    def _side(self, group: Sequence[Sequence[int]]) -> bool | None:
        """Tell whether these updates run on the host; None if they do not take place."""
        modes = [self.state.runs[position][1] for positions in group for position in positions]
        return next((mode != DEFAULT_MODE for mode in modes if mode != ABSENT), None)

    def _is_late(self, group: Sequence[Sequence[int]]) -> bool:
        return self.state.runs[group[0][-1]][1] != ABSENT

    def _move_across(self, group: Sequence[Sequence[int]], on_host: bool) -> set[int]:
        """Move updates that run on one side to the other; return what they touch."""
        state = self.state
        late = not on_host and self.random.random() < _LATE
        touched = self._put_at(group, -late, on_host=not on_host)
        changed = {x for positions in group for x in state.graph.mutate_lists[state.runs[positions[0]][0]]}
        for x in sorted(changed) if on_host else ():
            if self.random.random() < _AROUND:
                self._send(state.intervals_of(x))
        return touched

    def _put_at(self, group: Sequence[Sequence[int]], index: int, *, on_host: bool) -> set[int]:
        """Let updates take place at the first or the last of their positions; return what they touch.

        index: 0 or -1.
        """
        state = self.state
        for positions in group:
            if any(state.runs[position][1] != ABSENT for position in positions):
                mode = self.switchable[positions[index]] if on_host else DEFAULT_MODE
                state.switch({**dict.fromkeys(positions, ABSENT), positions[index]: mode})
        return {x for positions in group for x in state.graph.input_lists[state.runs[positions[0]][0]]}

    def _recompute_more(self) -> bool:
        """Add or remove a recomputation; in the memory that becomes free other tensors stay."""
        changed = self.recomputed.change(self._stalling())
        return bool(changed) and self._fit(changed) and self._fill(changed)

    def _overlap(self) -> bool:
        """Let a collective, or a weight's updates that read the result of one, run at another position."""
        state, group = self.state, self.random.choice(self.state.groups)
        positions = next((each for each in group if state.runs[each[0]][1] != ABSENT), None)
        if positions is None:
            return False
        operations = [state.runs[position][0] for position in positions]
        take_place(state, positions, self.random.choice([each for each in group if each != positions]))
        made = {x for o in operations for x in state.graph.operations.writes[o].tolist()}
        return self._fit(made.union(*(state.graph.input_lists[o] for o in operations)))

    def _leave_or_stay(self) -> bool:
        """Offload the tensor of an interval, or of all intervals of that tensor.

        A tensor that is offloaded is kept instead.
        """
        interval, other, state = self._any_interval(), self._any_interval(), self.state
        interval = self._stalling() or interval
        if interval is None or other is None:
            return False
        draw = self.random.random()
        moved = state.intervals_of(interval.tensor) if draw < _WHOLE else [interval]
        if interval.place not in state.offloaded:
            self._send(moved)
            return True
        if draw < _EXCHANGE:  # another tensor leaves for as much
            self._send(state.intervals_of(other.tensor))
        state.keep([each.place for each in moved])
        return self._fit({interval.tensor})

    def _send(self, intervals: Sequence[OffloadInterval]) -> None:
        """Offload the tensors of these intervals that are not offloaded yet."""
        deeper = self.disk and self.random.random() < _DEEPER
        for each in intervals:
            if each.place not in self.state.offloaded:
                to_disk = deeper and not self.state.cyclic[each.tensor] and not self._is_spread(each.tensor)
                self.state.send([each.place], Memory.DISK if to_disk else Memory.HOST)

    def _lie_elsewhere(self) -> bool:
        """Move an offloaded tensor from the host to the disk, or the reverse."""
        interval, state = self._any_interval(), self.state
        if interval is None or interval.place not in state.offloaded or self._is_spread(interval.tensor):
            return False
        on_disk = state.offloaded[interval.place] == Memory.DISK
        state.send([interval.place], Memory.HOST if on_disk else Memory.DISK)
        return on_disk or may_lie_below(state, interval.tensor)

    def _is_spread(self, tensor: int) -> bool:
        return tensor in self.state.graph.tensors.spread

    def _place_otherwise(self) -> bool:
        """Move a copy down, a fetch, or a read from the disk to another slot."""
        state = self.state
        interval = self._any_interval()
        if interval is None or interval.place not in state.offloaded:
            return False
        runs, farther = len(state.runs), self.random.randint(-_FARTHEST, _FARTHEST)
        if self.random.random() < _WIDE:
            farther = round((runs / 2) ** self.random.random()) * self.random.choice((-1, 1))
        if self.random.random() < _DOWN:
            slot = (state.decided.leave.get(interval.place, interval.after + 1) + farther) % (runs + 1)
            state.delay(interval.place, None if slot == interval.after + 1 else slot)
        elif interval.before == runs and not state.cyclic[interval.tensor]:
            return False
        else:
            back = (interval.tensor, interval.before % runs)
            if state.offloaded[interval.place] >= Memory.DISK and self.random.random() < _READ:
                state.read_at(back, (state.decided.read_shift.get(back, 0) + farther) or None)
            else:
                state.move(back, (state.decided.shift.get(back, 0) + farther) or None)
        return True

    # ── memory ──────────────────────────────────────────────────────────────────────────────────

    @property
    def _limit(self) -> float:
        return float(self.state.instance.limits[0])

    def _fit(self, staying: Collection[int]) -> bool:
        """Offload tensors that are resident at the worst moment until all fits; tell whether it does."""
        state, sent = self.state, 0
        while state.demand > self._limit:
            worst = int(state.curve.argmax())
            victim = self._covering(worst, staying)
            if victim is None or sent == _VICTIMS:
                return False
            self._send([victim])
            sent += 1
        return True

    def _fill(self, changed: Collection[int]) -> bool:
        """Let some tensors stay in the room there is."""
        state = self.state
        for _ in range(_VICTIMS):
            interval = self._any_interval()
            if interval is None or interval.place not in state.offloaded or interval.tensor in changed:
                continue
            mark = state.mark()
            state.keep([interval.place])
            if state.demand > self._limit:
                state.rollback(mark)
        return True

    def _any_interval(self) -> OffloadInterval | None:
        rows = self.state.interval_rows
        return OffloadInterval(*rows[self.random.randrange(len(rows))].item()) if len(rows) else None

    def _stalling(self) -> OffloadInterval | None:
        """Return, now and then, an interval that the device may wait for."""
        return self.stalls.interval(self.now) if self.random.random() < _STALL else None

    def _covering(self, moment: int, staying: Collection[int]) -> OffloadInterval | None:
        """Return an interval, at random, of a tensor that could be offloaded and is resident at a moment.

        Tensors outside `staying` come first.
        """
        state, rows = self.state, self.state.interval_rows
        starts, ends = ends_of(state, rows)
        # An interval that wraps ends beyond the iteration: the moment counts one iteration later too.
        around = (starts <= moment + state.moments) & (moment + state.moments < ends)
        there = np.flatnonzero(((starts <= moment) & (moment < ends)) | around).tolist()
        last = None
        while there:
            interval = OffloadInterval(*rows[there.pop(self.random.randrange(len(there)))].item())
            if interval.place not in state.offloaded:
                if interval.tensor not in staying:
                    return interval
                last = interval
        return last


def part_of(progress: Callable[[], float], begin: float, end: float) -> Callable[[], float]:
    """Return a progress that goes from 0 to 1 while the given one goes from `begin` to `end`."""
    return lambda: (progress() - begin) / (end - begin)


def _worth(outcome: StateFigures) -> float:
    """Return the objective of a state in seconds; less is better."""
    return outcome.seconds + _ELSEWHERE * outcome.elsewhere
