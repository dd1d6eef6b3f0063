"""The least steady-state period of a small training graph whose tensors may move, by exhaustive search.

The class of schedules that is searched, all of it:

- device computations in the file's order, each in any of its modes; an operation that runs on the CPU stands
  right behind the copy of its last input; with `recompute`, any of the forward operations run once more, each
  before any of the backward operations;
- a tensor may leave after any of its uses (device copy deleted as soon as it is used and copied), and comes
  back once before the next, in any slot and any order on the link; one copy down serves a version;
- copies down in any order on the link, each as early as that order allows (earlier never costs anything: it
  takes no device memory), those of a turn's versions before the list ends; host memory of any size, no disk.

Depth first over the list, from its start. A branch ends where its settled bytes do not fit now or will not at
a later run, whatever leaves, or where the computations end late even if all that the turn before left under
way had ended. What is left is judged by `simulate`; nothing else of memplan is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, permutations, product
from math import inf
from typing import NamedTuple

from exact_offload_turn import Life, Turn, least, seconds_of, sequences
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine, Memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import (
    Initial,
    Schedule,
    ScheduleStep,
    compute,
    delete,
    offload,
    prefetch,
)
from memplan.planner.simulator.simulate import simulate

SAME = 1e-9
Loads = tuple[float, float]
Chain = tuple["Chain", ScheduleStep] | None
"""Steps so far, the last outermost."""


class Optimum(NamedTuple):
    """period: seconds, ∞ where nothing fits. schedule: one that takes it. judged: schedules simulated.

    proven: False where the search was given up, and something may be faster.
    """

    period: float
    schedule: Schedule | None
    judged: int
    proven: bool = True


class _GivenUpError(Exception):
    """The search has seen as many states as it may."""


def optimum(
    graph: Graph,
    machine: Machine,
    budget: int,
    *,
    recompute: bool = False,
    weights_only: bool = False,
    prune: bool = True,
    states: float = inf,
) -> Optimum:
    """weights_only: nothing but persistent tensors leaves. prune: False to search without estimates of time,
    for a check of the search itself. states: after so many (some 10,000 a second) it gives up."""
    best, left = Optimum(inf, None, 0), states
    for runs in sorted(sequences(graph, recompute), key=lambda runs: least(graph, runs)):
        if least(graph, runs) < best.period * (1 - SAME):
            turn = Turn(graph, machine, budget, tuple(runs), weights_only)
            search = _Search(turn, best, prune, left)
            try:
                best = search.run()
            except _GivenUpError:
                return search.best._replace(proven=False)
            left = search.left
    return best


class _State(NamedTuple):
    """Between two steps.

    slot: before which run. Bits of lives: device, host: fresh copies there. marked: this version gets a copy
    down. leaving: it leaves as soon as copied. unused: copied, for nothing yet. flying: copied since it was
    last deleted. done: host runs, as bits.
    Times count from the start of the turn, all queues free then: compute, down, up, cpu: when these are free;
    ready, host_ready: when the copies are there. moved_down, moved_up: seconds of all copies.
    settled, used, pending: bytes as the rules count them; pending: (bytes, end of the copy).
    """

    slot: int
    device: int
    host: int
    marked: int
    leaving: int
    unused: int
    done: int
    flying: int
    compute: float
    down: float
    up: float
    cpu: float
    moved_down: float
    moved_up: float
    ready: tuple[float, ...]
    host_ready: tuple[float, ...]
    trace_real_layouts: int
    used: int
    pending: tuple[tuple[int, float], ...]
    steps: Chain


class _Search:
    def __init__(self, turn: Turn, best: Optimum, prune: bool, left: float) -> None:
        self.turn, self.best, self.prune, self.left = turn, best, prune, left
        self.limit = min(turn.budget, turn.machine.device_capacity or turn.budget)
        links = turn.machine.links
        assert links.d2h
        assert links.h2d
        self.down = [links.d2h.seconds(life.size) for life in turn.lives]
        self.up = [links.h2d.seconds(life.size) for life in turn.lives]
        self.count = len(turn.runs)
        self.persistent = sum(1 << k for k, life in enumerate(turn.lives) if life.persistent)
        self.zeros = (0.0,) * len(turn.lives)
        self.loads: dict[tuple[int, ...], Loads | None] = {}

    def run(self) -> Optimum:
        lives = self.turn.lives
        for places in product(*map(self._places, lives)):
            self.loads.clear()
            self.device = sum(1 << k for k, (there, _host) in enumerate(places) if there)
            self.host = sum(1 << k for k, (_there, host) in enumerate(places) if host)
            bytes_there = self.turn.always + self.turn.bytes_of(self.device)
            start = _State(
                slot=0,
                device=self.device,
                host=self.host,
                marked=self.host,
                leaving=0,
                unused=0,
                done=0,
                flying=0,
                compute=0.0,
                down=0.0,
                up=0.0,
                cpu=0.0,
                moved_down=0.0,
                moved_up=0.0,
                ready=self.zeros,
                host_ready=self.zeros,
                trace_real_layouts=bytes_there,
                used=bytes_there,
                pending=(),
                steps=None,
            )
            if bytes_there <= self.limit and self._fits(start):
                self._search(start)
        return self.best

    def _search(self, state: _State) -> None:
        if state.slot > self.count:
            self._judge(state)
            return
        loads = self._loads_after(state)
        if loads is None:
            return
        if self.prune:
            late = state.compute + self.turn.rest[state.slot]
            busy = max(late, state.moved_down + loads[0], state.moved_up + loads[1])
            if busy >= self.best.period * (1 - SAME):
                return
        for following in self._next(state):
            self._search(following)

    def _loads_after(self, state: _State) -> Loads | None:
        """The least seconds of copies down, and of those up, to the turn's end; None: no way leads there."""
        if state.slot > self.count:
            return 0.0, 0.0
        key = state[:7]
        if key not in self.loads:
            down, up = inf, inf
            zero = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, self.zeros, self.zeros
            bare = _State(*state[:7], 0, *zero, state.trace_real_layouts, state.trace_real_layouts, (), None)
            for following in self._next(bare):
                rest = self._loads_after(following)
                if rest is not None:
                    down = min(down, following.moved_down + rest[0])
                    up = min(up, following.moved_up + rest[1])
            self.loads[key] = None if down == inf else (down, up)
        return self.loads[key]

    @staticmethod
    def _places(life: Life) -> list[tuple[bool, bool]]:
        """(on the device, on the host) where a turn starts. What never changes lies on the host too."""
        if not life.persistent:
            return [(False, False)]
        if not life.uses:
            return [(False, True)]
        if life.host_changed or life.changed is None:
            return [(True, True), (False, True)]
        return (
            [(True, False), (False, True), (True, True)]
            if not life.host_uses
            else [(False, True), (True, True)]
        )

    # ── slot by slot ────────────────────────────────────────────────────────────────────────────

    def _next(self, state: _State) -> Iterator[_State]:
        """After one more copy up, or after the computation and what follows it."""
        self.left -= 1
        if self.left < 0:
            raise _GivenUpError
        if state.slot == self.count:
            if self._closed(state):
                yield state._replace(slot=self.count + 1)
            return
        for k, life in enumerate(self.turn.lives):
            bit = 1 << k
            if not life.uses or not state.host & bit or state.device & bit:
                continue
            if state.slot > life.uses[-1]:
                if not (life.persistent and self.device & bit):
                    continue
                if any(
                    changes & bit and not state.done >> number & 1
                    for number, changes in enumerate(self.turn.host_changes)
                ):
                    continue
            allocated = self._allocated(state, life.size, 0)
            if allocated is None:
                continue
            new, start = allocated
            end = max(start, state.compute, state.up, state.host_ready[k]) + self.up[k]
            new = new._replace(
                device=new.device | bit,
                up=end,
                moved_up=new.moved_up + self.up[k],
                ready=_with(new.ready, k, end),
                steps=(new.steps, prefetch(life.tensor)),
            )
            if self._fits(new):
                yield new
        yield from self._compute(state)

    def _compute(self, state: _State) -> Iterator[_State]:
        """Run the next computation, if its inputs are there."""
        turn, position = self.turn, state.slot
        needed = turn.needs[position]
        made = sum(1 << k for k, life in enumerate(turn.lives) if life.first == position and not life.direct)
        below = sum(1 << k for k, life in enumerate(turn.lives) if life.born == position and life.direct)
        at_host = sum(1 << k for k, life in enumerate(turn.lives) if position in life.host_uses)
        if needed & ~made & ~state.device or needed & state.leaving or at_host & ~state.host:
            return
        allocated = self._allocated(state, turn.bytes_of(made), turn.workspace[position])
        if allocated is None:
            return
        transient = turn.workspace[position]
        new, start = allocated
        new = new._replace(used=new.used - transient, trace_real_layouts=new.trace_real_layouts - transient)
        start = max(start, state.compute)
        for k in range(len(turn.lives)):
            if needed & ~made & 1 << k:
                start = max(start, state.ready[k])
            if at_host & 1 << k:
                start = max(start, state.host_ready[k])
        end = start + turn.seconds[position]
        ready = tuple(end if below >> k & 1 else at for k, at in enumerate(new.host_ready))
        yield from self._after(
            new._replace(
                slot=position + 1,
                device=new.device | made,
                host=new.host | below,
                marked=new.marked | below,
                host_ready=ready,
                flying=new.flying & ~at_host,
                compute=end,
                steps=(new.steps, compute(*turn.runs[position])),
            )
        )

    def _after(self, state: _State) -> Iterator[_State]:
        """Versions begin, lives end; what was used leaves or stays, what is new gets a copy down or not."""
        turn, slot = self.turn, state.slot
        position = slot - 1
        born, moving = 0, list[int]()
        for k, life in enumerate(turn.lives):
            bit = 1 << k
            if life.changed == position:
                if state.unused & bit:
                    return
                state = self._changed(state, k)
            if life.changed == position or (life.born == position and not life.persistent):
                born |= bit
            if not state.device & bit or life.born > position:
                continue
            if turn.next_use(k, slot) is None and not self._wanted_on_host(state, k):
                if state.unused & bit:
                    return
                state = self._deleted(state, k)
            elif born & bit or position in life.uses:
                moving.append(k)
        state = self._updates(state)
        choices = [self._choices(state, k, bool(born >> k & 1), slot) for k in moving]
        for chosen in product(*choices):
            new = state
            for k, (marked, leaves) in zip(moving, chosen, strict=True):
                bit = 1 << k
                new = new._replace(marked=new.marked | bit if marked else new.marked)
                if leaves:
                    new = self._left(new, k) if new.host & bit else new._replace(leaving=new.leaving | bit)
            if self._fits(new):
                yield from self._copies_down(self._updates(new), born)

    def _wanted_on_host(self, state: _State, k: int) -> bool:
        return bool(self.turn.lives[k].host_uses) and not state.host >> k & 1

    def _choices(self, state: _State, k: int, born: bool, slot: int) -> list[tuple[bool, bool]]:
        """(gets a copy down, leaves now)."""
        life, following = self.turn.lives[k], self.turn.next_use(k, slot)
        if following is None:
            return [(True, True)]
        stays = life.tensor in self.turn.graph.tensors.stays
        if stays or (self.turn.weights_only and not life.persistent):
            return [(False, False)]
        if life.host_changed and slot > life.uses[-1]:
            return [(False, True)]
        worth = following > slot
        if born:
            variants = [(True, True)] if worth else []
            if life.persistent or life.host_uses or any(b > a + 1 for a, b in pairwise(life.uses)):
                variants.append((True, False))
            return variants if life.host_uses else [*variants, (False, False)]
        leaves = [(False, True)] if state.marked >> k & 1 and worth else []
        return [*leaves, (False, False)]

    def _copies_down(self, state: _State, born: int) -> Iterator[_State]:
        """Any of the marked in any order, the first of them born now; or none."""
        waiting = state.marked & state.device & ~state.host
        ready = [k for k in range(len(self.turn.lives)) if waiting >> k & 1]
        ready.sort(key=lambda k: not born >> k & 1)
        for count in range(len(ready), 0, -1):
            for order in permutations(ready, count):
                if born >> order[0] & 1:
                    new = state
                    for k in order:
                        new = self._copied(new, k)
                    yield new
        yield state

    def _closed(self, state: _State) -> bool:
        """The end of the list: all is where it began, and done."""
        back = (state.device & self.persistent, state.host & self.persistent) == (self.device, self.host)
        return back and state.done == (1 << len(self.turn.host_runs)) - 1 and not state.leaving

    # ── single steps ────────────────────────────────────────────────────────────────────────────

    def _copied(self, state: _State, k: int) -> _State:
        bit, life = 1 << k, self.turn.lives[k]
        end = max(state.down, state.compute) + self.down[k]
        state = state._replace(
            host=state.host | bit,
            unused=state.unused if life.host_uses else state.unused | bit,
            flying=state.flying | bit,
            down=end,
            moved_down=state.moved_down + self.down[k],
            host_ready=_with(state.host_ready, k, end),
            steps=(state.steps, offload(life.tensor)),
        )
        state = self._updates(state)
        if state.leaving & bit:
            state = self._left(state, k)
        return state

    def _updates(self, state: _State) -> _State:
        """The CPU's operations that can run: inputs in host memory, what they change nowhere else."""
        turn = self.turn
        for number, inputs in enumerate(turn.host_inputs):
            changes = turn.host_changes[number]
            if state.done >> number & 1 or inputs & ~state.host or changes & state.device:
                continue
            start = max([state.cpu, *(at for k, at in enumerate(state.host_ready) if inputs >> k & 1)])
            end = start + seconds_of(turn.graph, turn.host_runs[number])
            ready = [end if changes >> k & 1 else at for k, at in enumerate(state.host_ready)]
            step = compute(*turn.host_runs[number])
            state = state._replace(
                cpu=end, host_ready=tuple(ready), done=state.done | 1 << number, steps=(state.steps, step)
            )
        return state

    def _left(self, state: _State, k: int) -> _State:
        """The device copy goes; the one on the host brings it back."""
        state = self._deleted(state, k)
        return state._replace(unused=state.unused & ~(1 << k), leaving=state.leaving & ~(1 << k))

    def _deleted(self, state: _State, k: int) -> _State:
        bit, size = 1 << k, self.turn.lives[k].size
        flying = bool(state.flying & bit)
        return state._replace(
            device=state.device & ~bit,
            flying=state.flying & ~bit,
            trace_real_layouts=state.trace_real_layouts - size,
            used=state.used if flying else state.used - size,
            pending=(*state.pending, (size, state.host_ready[k])) if flying else state.pending,
            steps=(state.steps, delete(self.turn.lives[k].tensor)),
        )

    def _changed(self, state: _State, k: int) -> _State:
        """A new version on the device: the copy on the host goes."""
        bit = 1 << k
        if state.host & bit:
            step = delete(self.turn.lives[k].tensor, Memory.HOST)
            state = state._replace(host=state.host & ~bit, steps=(state.steps, step))
        return state._replace(marked=state.marked & ~bit, flying=state.flying & ~bit)

    def _allocated(self, state: _State, kept: int, transient: int) -> tuple[_State, float] | None:
        """The state with all these bytes counted, and what the step waits for."""
        size = kept + transient
        if state.trace_real_layouts + size > self.limit:
            return None
        used, pending, start = state.used, state.pending, 0.0
        while used + size > self.limit:
            freed, end = pending[0]
            pending = pending[1:]
            used -= freed
            start = max(start, end)
        return state._replace(
            trace_real_layouts=state.trace_real_layouts + size, used=used + size, pending=pending
        ), start

    def _fits(self, state: _State) -> bool:
        """Whether the later runs have room beside what surely stays."""
        turn, slot = self.turn, state.slot
        ends = [0] * len(turn.lives)
        for k in range(len(turn.lives)):
            if state.device >> k & 1 and not state.leaving >> k & 1:
                ends[k] = self._stays_until(state, k, slot)
                if ends[k] > self.count and turn.lives[k].persistent and not self.device >> k & 1:
                    return False
        for position in range(slot, self.count):
            there = turn.needs[position] | sum(1 << k for k, end in enumerate(ends) if end > position)
            if turn.always + turn.bytes_of(there) + turn.workspace[position] > self.limit:
                return False
        return True

    def _stays_until(self, state: _State, k: int, slot: int) -> int:
        """The first run before which it may leave; beyond the last: it is there when the turn ends."""
        life, following = self.turn.lives[k], self.turn.next_use(k, slot)
        if following is None:
            return slot
        if state.marked >> k & 1 or life.host_changed:
            return following + 1
        if not life.persistent:
            return self.count if life.stays else life.uses[-1] + 1
        if life.changed is not None and life.changed >= slot:
            return life.changed + 1
        return self.count + 1

    def _judge(self, state: _State) -> None:
        steps: list[ScheduleStep] = []
        chain = state.steps
        while chain is not None:
            chain, step = chain
            steps.append(step)

        def named(lives: int) -> frozenset[int]:
            return frozenset(life.tensor for k, life in enumerate(self.turn.lives) if lives >> k & 1)

        places = Initial(host=named(self.host & ~self.device), both=named(self.host & self.device))
        schedule, turn = Schedule.of(reversed(steps), places), self.turn
        try:
            time = simulate(turn.graph, schedule, budget=turn.budget, machine=turn.machine).figures.time
        except InvalidScheduleError as error:
            raise AssertionError(f"the search made a schedule that breaks a rule: {error}") from error
        judged = self.best.judged + 1
        better = time < self.best.period * (1 - SAME)
        self.best = Optimum(time, schedule, judged) if better else self.best._replace(judged=judged)


def _with(times: tuple[float, ...], k: int, time: float) -> tuple[float, ...]:
    return (*times[:k], time, *times[k + 1 :])
