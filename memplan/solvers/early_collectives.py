"""Move collectives in a schedule to where they overlap with computations, within the budget.

    before   F1  gather w2  F2                 the compute queue waits for w2
    after    gather w2  F1  F2                 it is issued earlier: its result is there from then on

A local search moves one run after the other: a collective to an earlier place or a later one, and an update
that reads a collective's result to one at which that has ended. A move is made if it saves time and the
bytes, were every delete immediate, stay within the budget. The time is that of two queues from the start of
an iteration: it knows neither launches nor pending deletes, so it is for the simulator to say what the
schedule takes.

For schedules on the device alone. A run is tried at about 2 log(runs) places, each in one pass over the runs.
"""

from __future__ import annotations

import numpy as np

from ..graphs.arrays import Ints
from ..graphs.graph import Graph
from ..planner.schedule.schedule import Initial, Schedule, Verb
from ..planner.schedule.sequence import runs_of, schedule_of
from .clock import Clock

_SAVES = 1e-9
"""The least relative saving for which a run moves: sums are rounded."""


def with_early_collectives(graph: Graph, schedule: Schedule, budget: int, clock: Clock) -> Schedule:
    """Return the schedule with its collectives, and updates that read their results, at better places."""
    if (schedule.verbs > Verb.DELETE).any() or schedule.initial != Initial() or not graph.operations.comm:
        return schedule
    return _Order(graph, schedule, budget).improved(clock)


class _Order:
    """The order of a schedule's runs, which are known by their places in it at first.

    order: the runs as they stand now. place: per run where it stands.
    results: per run, the collectives whose results it reads.
    """

    def __init__(self, graph: Graph, schedule: Schedule, budget: int) -> None:
        self.graph, self.budget = graph, budget
        self.runs = runs_of(schedule)
        count = len(self.runs)
        self.is_collective = [o in graph.operations.comm for o, _mode in self.runs]
        self.seconds = [graph.seconds(o, mode) for o, mode in self.runs]
        self.order, self.place = list(range(count)), np.arange(count)
        self.results: list[list[int]] = [[] for _ in range(count)]
        self._read_copies()
        self.bounds = {run: self._bounds_of(run) for run in range(count) if self._moves(run)}

    # ── the runs ────────────────────────────────────────────────────────────────────────────────

    def _read_copies(self) -> None:
        """Read which runs use each copy of a tensor, from the run that makes it on."""
        graph = self.graph
        self.makers: list[set[int]] = [set() for _ in range(len(graph.tensors))]
        self.readers: list[set[int]] = [set() for _ in range(len(graph.tensors))]
        copies: list[list[list[int]]] = [[] for _ in range(len(graph.tensors))]
        held = [0] * len(graph.tensors)
        for run, (o, mode) in enumerate(self.runs):
            for x in graph.input_lists[o]:
                self.readers[x].add(run)
                if copies[x]:
                    copies[x][-1].append(run)
                    if self.is_collective[copies[x][-1][0]]:
                        self.results[run].append(copies[x][-1][0])
            for x in graph.mutate_lists[o]:
                self.makers[x].add(run)
            for x, bit in graph.contributions(o, mode):
                self.makers[x].add(run)
                if not held[x] or held[x] & bit:  # what is there already was deleted before
                    copies[x].append([])
                    held[x] = 0
                held[x] |= bit
                copies[x][-1].append(run)
        each = [(x, copy) for x, of in enumerate(copies) for copy in of]
        stays = [x in graph.results and copy is copies[x][-1] for x, copy in each]
        self._users = np.array([run for _x, copy in each for run in copy], np.int64)
        self._starts = np.cumsum([0, *(len(copy) for _x, copy in each)][:-1])
        self._sizes = graph.tensors.bytes[[x for x, _copy in each]]
        self._stays = np.array(stays, np.bool_)
        self._workspaces = np.array([graph.workspace(o, mode) for o, mode in self.runs], np.int64)
        self._always = int(graph.tensors.bytes[graph.resident].sum())

    def _moves(self, run: int) -> bool:
        """Tell whether a run may move: a collective, or an update that reads the result of one."""
        o, _mode = self.runs[run]
        operations = self.graph.operations
        updates = len(operations.mutates[o]) and not len(operations.writes[o]) and not operations.random[o]
        return self.is_collective[run] or bool(updates and self.results[run])

    def _bounds_of(self, run: int) -> tuple[Ints, Ints]:
        """Return the runs that it stays after, and those that it stays before.

        One of both makes or changes what the other uses.
        """
        o, mode = self.runs[run]
        made = {*self.graph.mutate_lists[o], *(x for x, _bit in self.graph.contributions(o, mode))}
        others = set[int]()
        for x in made:
            others |= self.makers[x] | self.readers[x]
        for x in self.graph.read_lists[o]:
            others |= self.makers[x]
        others.discard(run)
        sides = ([one for one in others if one < run], [one for one in others if one > run])
        return np.array(sides[0], np.int64), np.array(sides[1], np.int64)

    # ── the search ──────────────────────────────────────────────────────────────────────────────

    def improved(self, clock: Clock) -> Schedule:
        best, improves, backwards = self._time(self.order), True, False
        while improves and not clock.expired:
            improves = False
            for run in sorted(self.bounds, key=self.place.__getitem__, reverse=backwards):
                if clock.expired:
                    break
                found = self._best_move(run, best)
                if found is not None:
                    best, self.order, self.place = found
                    improves = True
            backwards = not backwards
        return schedule_of(self.graph, [self.runs[run] for run in self.order])

    def _best_move(self, run: int, best: float) -> tuple[float, list[int], Ints] | None:
        """Return the fastest order that is faster and fits, in which one run stands elsewhere."""
        tried: list[tuple[float, list[int]]] = []
        for place in self._places(run):
            order = self.order.copy()
            order.remove(run)
            order.insert(place, run)
            if (time := self._time(order)) < best * (1.0 - _SAVES):
                tried.append((time, order))
        for time, order in sorted(tried):
            place = np.empty_like(self.place)
            place[order] = np.arange(len(order))
            if self._peak(place) <= self.budget:
                return time, order, place
        return None

    def _places(self, run: int) -> set[int]:
        """Return places for a run: 1, 2, 4, … before and after its own, the first and the last possible."""
        before, after = self.bounds[run]
        own = int(self.place[run])
        first = int(self.place[before].max(initial=-1)) + 1
        last = int(self.place[after].min(initial=len(self.order))) - 1
        steps = [2**power for power in range(len(self.order).bit_length())]
        near = {own + step for step in steps} | {own - step for step in steps}
        return {place for place in near | {first, last} if first <= place <= last} - {own}

    def _time(self, order: list[int]) -> float:
        network = computed = 0.0
        ends = dict[int, float]()
        is_collective, seconds, results = self.is_collective, self.seconds, self.results
        for run in order:
            if is_collective[run]:
                network = (network if network > computed else computed) + seconds[run]
                ends[run] = network
                continue
            for collective in results[run]:
                if ends[collective] > computed:
                    computed = ends[collective]
            computed += seconds[run]
        return max(network, computed)

    def _peak(self, place: Ints) -> int:
        """Return the peak in bytes if runs stand at these places."""
        users, count = place[self._users], len(place)
        first = np.minimum.reduceat(users, self._starts)
        last = np.maximum.reduceat(users, self._starts)
        changes = np.zeros(count + 1, np.int64)
        np.add.at(changes, first, self._sizes)
        np.subtract.at(changes, np.where(self._stays, count, last + 1), self._sizes)
        workspaces = np.empty(count, np.int64)
        workspaces[place] = self._workspaces
        return self._always + int((np.cumsum(changes[:count]) + workspaces).max())
