"""One point of the joint search: which runs take place, what is offloaded when, which updates run on the
host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Floats, Ints
from ....graphs.graph import Graph
from ....graphs.machine import Machine, Memory
from ....planner.replay.clock import MAX_ITERATIONS
from ....planner.replay.instance import Instance, VariantTable
from ....planner.replay.replay import UNASKED, figures_for, replay
from ....planner.residency.assembly import assemble
from ....planner.residency.lifetimes import Access, count_moments
from ....planner.residency.prefetch_placement import LONGEST_LOOK_AHEAD, schedule_of_steps
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.schedule import Schedule
from ....planner.schedule.sequence import Run
from .aggregates import Aggregates
from .parts import Decisions, IntervalParts, OffloadInterval
from .timeline import ABSENT, Lineup


class StateFigures(NamedTuple):
    """The figures of a state.

    seconds: the period.
    excess: bytes above a limit, at worst; ∞ if a tensor would start where no schedule can say.
    look_ahead, reserve: those with which it was evaluated.
    elsewhere: seconds of an iteration that links, disks and the CPU are busy.
    """

    seconds: float
    excess: float
    look_ahead: float = 1.5
    reserve: float = 0.0
    elsewhere: float = 0.0


class State:
    """The decisions of one point of the search, and all that follows from them.

    runs: with modes, ABSENT ones among them. decided: change it by `send`, `keep`, `delay`, `move`, `read_at`
    and `switch`, then `evaluate`. A decision for a use that begins no offload interval with the current runs
    has no effect, until it begins one.

    all_offloaded: everything that can be offloaded is, at first. smallest: bytes from which a tensor can be
    offloaded. groups: positions of runs, and others at which these may take place (alternatives.py).
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        budget: int,
        runs: Iterable[Run],
        *,
        all_offloaded: bool = False,
        smallest: int = 1,
        groups: Sequence[Sequence[tuple[int, ...]]] = (),
    ) -> None:
        self.graph, self.machine, self.budget, self.groups = graph, machine, budget, groups
        self._smallest, self._movable = smallest, movable(graph, machine)
        self.decided: Decisions
        self.variants = VariantTable(graph)
        self.instance: Instance = self.variants.instance(machine, budget)
        self.cyclic: list[bool] = graph.persistent.tolist()
        self._lineup = Lineup(graph, self.variants, list(runs))
        self._parts = IntervalParts(graph, machine, self._lineup)
        self.moments = count_moments(len(self.runs))
        self._journal: list[tuple[dict[TensorUse, Any] | None, TensorUse, Any]] = []
        self._stale, self._stale_intervals = set[int](), set[int]()
        self.reset(self.runs, Decisions({}, {}, {}, {}))
        if all_offloaded:
            self.send_all()

    # ── changes ─────────────────────────────────────────────────────────────────────────────────

    def send(self, places: Iterable[TensorUse], to: int = Memory.HOST) -> None:
        """Let tensors leave after these uses."""
        self._change(self.decided.offloaded, dict.fromkeys(places, to))

    def send_as(self, offloaded: Mapping[TensorUse, int]) -> None:
        """Let tensors leave after these uses, each to the memory given."""
        self._change(self.decided.offloaded, offloaded)

    def keep(self, places: Iterable[TensorUse]) -> None:
        """Let tensors stay after these uses."""
        self._change(self.decided.offloaded, dict.fromkeys(places))

    def delay(self, where: TensorUse, slot: int | None) -> None:
        """Let the copy down for this interval run before another run; None: at once."""
        self._change(self.decided.leave, {where: slot})

    def move(self, where: TensorUse, shift: int | None) -> None:
        """Let the fetch for this use come so many slots later, whatever the others do; None: as it comes."""
        self._change(self.decided.shift, {where: shift})

    def read_at(self, where: TensorUse, shift: int | None) -> None:
        """Let the read from the disk for this use run so many slots later; None: as it comes."""
        self._change(self.decided.read_shift, {where: shift})

    def switch(self, modes: Mapping[int, int]) -> None:
        """Run the operations at these positions in other variants, on the other side of the bus, or not at
        all."""
        for position, mode in modes.items():
            before = self.runs[position][1]
            if before != mode:
                # The entry of a run has no table; its place is the position alone.
                self._journal.append((None, (position, 0), before))
                self._put_run(position, mode)

    def mark(self) -> int:
        """Return the point of the journal to which `rollback` can return."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Take back what was changed since then."""
        while len(self._journal) > mark:
            table, where, before = self._journal.pop()
            if table is None:
                self._put_run(where[0], before)
            else:
                _put(table, where, before)
                self._stale.add(where[0])

    def reset(self, runs: Sequence[Run], decided: Decisions) -> None:
        """Begin anew with these decisions, whatever is half done. runs: the same in other modes."""
        self.decided = decided.copy()
        self.forget()
        self._lineup.read(runs)
        self._sums = Aggregates(self.graph, self._lineup, self.moments, self.machine.hierarchy)
        self._current = None
        # Everything is counted anew, so the sums begin empty.
        self._stale, self._stale_intervals = set(self._lineup.touched), set(self._lineup.touched)

    def forget(self) -> None:
        """Make all changes until now final: `rollback` keeps them."""
        self._journal.clear()

    def _change(self, table: dict[TensorUse, Any], values: Mapping[TensorUse, Any]) -> None:
        for where, value in values.items():
            before = table.get(where)
            if before != value:
                self._journal.append((table, where, before))
                _put(table, where, value)
                self._stale.add(where[0])

    def _put_run(self, position: int, mode: int) -> None:
        """Change the variant of a run."""
        before = self._lineup.workspace(position)
        touched = self._lineup.put(position, mode)
        self._sums.add_workspace(position, self._lineup.workspace(position) - before)
        self._current = None
        self._stale.update(touched)
        self._stale_intervals.update(touched)

    @property
    def _total(self) -> Aggregates:
        """Return the sums, with all changes counted: several changes in a row are counted once."""
        if self._stale:
            self._count_changes()
        return self._sums

    def _count_changes(self) -> None:
        for x in sorted(self._stale):
            if x in self._lineup.touched:
                self._sums.put(x, self._parts.of(x, self.decided))
        self._stale.clear()  # at the end: what an interruption leaves out is counted the next time

    def _count_intervals(self) -> None:
        """Count the offload intervals, which depend on the runs alone."""
        for x in sorted(self._stale_intervals):
            if x in self._lineup.touched and self._sums.put_intervals(x, self._parts.intervals(x)):
                self._current = None
        self._stale_intervals.clear()

    # ── what it comes to ────────────────────────────────────────────────────────────────────────

    @property
    def runs(self) -> list[Run]:
        return self._lineup.runs

    @property
    def offloaded(self) -> dict[TensorUse, int]:
        return self.decided.offloaded

    @property
    def curve(self) -> Ints:
        """Return the device bytes at each moment, with every fetch just before its use."""
        return self._total.curves[Memory.DEVICE]

    @property
    def demand(self) -> int:
        """Return the most device bytes at any moment, with every fetch just before its use."""
        return int(self.curve.max(initial=0))

    @property
    def starts(self) -> Floats:
        """Return when each run would start on the compute queue without waiting, and when the last would
        end."""
        return self._lineup.starts

    @property
    def intervals(self) -> list[OffloadInterval]:
        """Return the offload intervals between uses on the device.

        A run and the next one have none between them.
        """
        return [OffloadInterval(*row) for row in self.interval_rows.tolist()]

    @property
    def interval_rows(self) -> Any:
        """Return the offload intervals as an array with the fields tensor, after, before."""
        self._count_intervals()
        if self._current is None:
            rows = self._sums.all_intervals
            self._current = rows[(rows["after"] >= 0) & self._useful(rows)]
        return self._current

    @property
    def largest(self) -> float:
        """Return the bytes of the largest tensor that can be offloaded with the current runs."""
        return float(self.graph.tensors.bytes[self.interval_rows["tensor"]].max(initial=0))

    def intervals_of(self, tensor: int) -> list[OffloadInterval]:
        self._count_intervals()
        rows = self._sums.intervals(tensor)
        if rows is None:  # it has no bytes
            return []
        return [OffloadInterval(*row) for row in rows[self._useful(rows)].tolist()]

    def _useful(self, rows: Any) -> NDArray[np.bool_]:
        """Tell per row whether the tensor can leave, is large enough, and some run takes place between the
        two uses.

        Between iterations the latter always holds.
        """
        # count[p]: runs that take place before position p; equal counts mean that nothing runs in between.
        before, runs, count = rows["before"], len(self.runs), self._lineup.before
        apart = (before > runs) | (count[np.minimum(before, runs)] > count[rows["after"] + 1])
        large = self.graph.tensors.bytes[rows["tensor"]] >= self._smallest
        return apart & self._movable[rows["tensor"]] & large

    @property
    def smallest(self) -> int:
        """Return the bytes from which a tensor can be offloaded."""
        return self._smallest

    @smallest.setter
    def smallest(self, size: int) -> None:
        self._smallest, self._current = size, None

    def send_all(self) -> None:
        """Let leave whatever can."""
        touched = self._lineup.touched
        unused = [(x, -1) for x in touched if not touched[x] and self.cyclic[x] and self._movable[x]]
        self.send([*(interval.place for interval in self.intervals), *unused])

    def present(self, tensor: int) -> list[tuple[int, Access]]:
        """Return the runs that touch a tensor, by position, with their accesses."""
        return self._lineup.present(tensor)

    def starts_on(self, tensor: int) -> int:
        """Return the memories in which a tensor starts, as bits, with every fetch in the iteration of its
        use."""
        return int(self._total.initial[tensor])

    def evaluate(self, look_ahead: float, reserve: float = 0.0) -> StateFigures:
        result = self._replayed(look_ahead, reserve)
        seconds, excess, *_peaks, elsewhere = result.tolist()
        # What starts where no schedule can say is worse than any excess.
        return StateFigures(seconds, inf if self._total.unsaid else excess, look_ahead, reserve, elsewhere)

    def peaks(self, look_ahead: float) -> Floats:
        """Return the peak bytes of each memory, and last of pinned memory."""
        return self._replayed(look_ahead, 0.0)[2:-1]

    def _replayed(self, look_ahead: float, reserve: float) -> Floats:
        steps, starts = self.steps(look_ahead, reserve)
        result = figures_for(self.instance)
        replay(self.instance, steps, starts, result, UNASKED, MAX_ITERATIONS)
        return result

    def waits(self, outcome: StateFigures) -> Floats:
        """Return per run the seconds that the device waits for it; 0 for those on the host."""
        found = np.zeros(len(self.runs))
        steps, starts = self.steps(outcome.look_ahead, outcome.reserve)
        seconds = np.zeros(len(steps))
        replay(self.instance, steps, starts, figures_for(self.instance), seconds, MAX_ITERATIONS)
        computed = [place for place in range(len(self.runs)) if self._lineup.on_device(place)]
        found[computed] = seconds[: len(computed)]
        return found

    def steps(self, look_ahead: float, reserve: float) -> tuple[Ints, NDArray[np.uint8]]:
        """Return rows (verb, variant or tensor, memory), and per tensor the memories in which it starts."""
        device, *below = self.instance.limits[:-2].tolist()  # but for the last memory, and what is pinned
        total, starts = self._total, self._total.initial.copy()
        moves, fetches = total.moves.used, total.fetches.used
        # A fetch copies once per memory on its way up at most.
        steps = np.empty((len(moves) + len(total.curves) * len(fetches) + len(self.runs), 3), np.int64)
        count = assemble(
            moves,
            fetches,
            self._lineup.variants,
            self.starts,
            total.curves,
            np.array([device - reserve, *below]),
            min(look_ahead, LONGEST_LOOK_AHEAD),
            starts,
            steps,
        )
        return steps[:count], starts

    def schedule(self, outcome: StateFigures) -> Schedule:
        """Return the schedule that was evaluated."""
        steps, starts = self.steps(outcome.look_ahead, outcome.reserve)
        return schedule_of_steps(self.graph, self.variants.runs, steps, starts)

    @property
    def residency(self) -> Residency:
        """Return the decisions alone, by the runs that take place."""
        present = [position for position, run in enumerate(self.runs) if run[1] != ABSENT]
        number = {-1: -1, **{position: index for index, position in enumerate(present)}}
        offloaded = {(x, number[after]): to for (x, after), to in self.offloaded.items() if after in number}
        return Residency([self.runs[position] for position in present], offloaded)


def movable(graph: Graph, machine: Machine) -> NDArray[np.bool_]:
    """Tell per tensor whether it can leave the device between two uses, and come back.

    Of spread tensors weights can, which lie on the peers for ever. A gradient there is a sum over the ranks:
    it does not come back.
    """
    spread = graph.spread
    if not machine.links.reach_host:
        return spread & graph.persistent
    return (~spread | graph.persistent) & ~graph.stays


def _put(table: dict[TensorUse, Any], where: TensorUse, value: Any) -> None:
    if value is None:
        table.pop(where, None)
    else:
        table[where] = value
