"""Idle time that no order of copies avoids, where nothing runs again: a bound in closed form.

While kernel t runs, at least X = (bytes that are wanted then or later) − limit are not on the device. What is
away has a copy below that was made since its version began, and comes up before its next use:

    down   those whose version began at s or later hold at least X − (bytes away that began before s); they
           pass the link between s and the start of t, as the memory that t runs in has to wait for them
    up     those whose next use is at e or before hold at least X − (bytes away that are used after e); they
           pass it between the end of t and e

A link moves β bytes a second, so within such a window the device idles for bytes / β less the seconds of the
kernels in it. Windows add up that share no moment between two kernels: the best set
of them is found along the turn. Between host
and disk alike, with the host's capacity in the limit; there the way up may begin with t.

Holds for schedules that run each operation once, in the file's order: for all, where none may run again, but
for other orders. Latencies are left out. Around the turn's end windows count from several origins, of which
the best is taken. O(moments · uses of tensors); of many moments those of the highest levels in equal parts.

Our own; the offloading program (program.py) has it all and more, at a few moments only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.graph import Graph
from ....graphs.machine import Link, Machine
from ....planner.bounds import time_bound

Ints = NDArray[np.int64]

WORK = 20_000_000
"""Absences looked at from one origin, over all moments."""

ORIGINS = 4
"""Of the turn, beside its start; spread over what comes behind the last moment that is above the limit."""


class _Absences(NamedTuple):
    """Between two uses of a tensor, in the turn or the next. made: the position behind the change that began
    its version, below all others where nothing ever changes it."""

    size: Ints
    after: Ints
    before: Ints
    made: Ints

    def by(self, keys: Ints) -> _Absences:
        order = np.argsort(keys, kind="stable")
        return _Absences(*(column[order] for column in self))

    def around(self, position: int) -> _Absences:
        return _Absences(*(column[(self.after < position) & (position < self.before)] for column in self))


class _Way(NamedTuple):
    """excess: per position, bytes that are below. wait: 1 where the way up waits for the position's end."""

    excess: Ints
    down: Link
    up: Link
    wait: int


def link_bound(graph: Graph, machine: Machine, limit: int) -> float:
    """Seconds of a period with `limit` bytes on the device; ∞: there is no schedule. The time of all
    operations where some may run again or have other modes, or where there are no links."""
    seconds, links, host = time_bound(graph), machine.links, machine.host_capacity
    operations = graph.operations
    again = operations.recompute & (operations.mutates.counts() == 0)
    if operations.modes or again.any() or links.d2h is None or links.h2d is None:
        return seconds
    level = _level(graph)
    ways = [_Way(level - limit, links.d2h, links.h2d, 1)]
    if host is not None and links.disk_write is not None and links.disk_read is not None:
        ways.append(_Way(level - limit - host, links.disk_write, links.disk_read, 0))
    elif host is not None and (level > limit + host).any():
        return inf
    if not (level > limit).any():
        return seconds
    return max(seconds, float(operations.time.sum()) + _idle(graph, ways))


def _level(graph: Graph) -> Ints:
    """Per operation the bytes of what is wanted then or later, with what it takes for itself. Persistent
    tensors that nothing touches may lie anywhere, on the disk too, and don't count."""
    count, sizes, results = len(graph.operations), graph.tensors.bytes, {*graph.results}
    change = np.zeros(count + 1, np.int64)
    change[0] = sizes[graph.resident & ~graph.persistent].sum()
    for x in np.flatnonzero(~graph.resident | graph.persistent).tolist():
        touched = _touched(graph, x)
        if touched and graph.persistent[x]:
            change[0] += sizes[x]
        elif touched:
            change[touched[0]] += sizes[x]
            change[count if x in results else touched[-1] + 1] -= sizes[x]
    return change.cumsum()[:-1] + graph.operations.workspace


def _touched(graph: Graph, x: int) -> list[int]:
    rows = (graph.producers[x], graph.consumers[x], graph.mutators[x])
    return sorted({operation for row in rows for operation in row.tolist()})


def _absences(graph: Graph) -> _Absences:
    """Of a turn, of what lasts from the turn before, and of the next turn."""
    count, results = len(graph.operations), {*graph.results}
    never = 4 * count
    rows: list[tuple[int, int, int, int]] = []
    for x in np.flatnonzero(~graph.resident | graph.persistent).tolist():
        size, touched, cyclic = int(graph.tensors.bytes[x]), _touched(graph, x), bool(graph.persistent[x])
        changes = sorted({*graph.producers[x].tolist(), *graph.mutators[x].tolist()})
        ends = [touched[0] + count] if cyclic and touched else [never] if x in results else []
        for after, before in pairwise([*touched, *ends]):
            if before > after + 1:
                last = bisect_right(changes, after) - 1
                made = changes[last] + 1 - count * (last < 0) if changes else -never
                turns = (-1, 0, 1) if cyclic else (0, 1)
                rows += [(size, after + k * count, before + k * count, made + k * count) for k in turns]
    return _Absences(*np.array(rows, np.int64).reshape(-1, 4).T)


def _idle(graph: Graph, ways: Sequence[_Way]) -> float:
    """Seconds, from the best of the origins."""
    absences, count = _absences(graph), len(graph.operations)
    above = np.flatnonzero(ways[0].excess > 0)
    if len(above) > (most := max(1, WORK // max(1, len(absences.size)))):
        parts = np.array_split(above, most)
        above = np.array([part[ways[0].excess[part].argmax()] for part in parts])
    low, room = int(above[-1]) + 1, count - 1 - int(above[-1] - above[0])
    origins = {0, *((low + room * k // (ORIGINS - 1)) % count for k in range(ORIGINS))}
    made, used = absences.by(-absences.made), absences.by(absences.before)
    moments = {*above.tolist()}
    clock = np.concatenate(([0.0], np.tile(graph.operations.time, 2).cumsum()))
    return max(_Turn(origin, clock, ways, made, used).idle(moments) for origin in origins)


class _Turn:
    """The turn from one origin. clock: seconds before each position of two turns. made, used: absences, those
    of the latest versions first, those of the next uses first. best: behind so many gaps, the idle time that
    windows prove which share none; a gap is what passes right before a run."""

    def __init__(
        self,
        origin: int,
        clock: NDArray[np.float64],
        ways: Sequence[_Way],
        made: _Absences,
        used: _Absences,
    ) -> None:
        self.origin, self.clock, self.ways, self.made, self.used = origin, clock, ways, made, used
        self.best = np.zeros(len(clock) // 2 + 1)

    def idle(self, moments: Container[int]) -> float:
        count = len(self.best) - 1
        for place in range(count):
            self.best[place + 1] = max(self.best[place + 1], self.best[place])
            position = self.origin + place
            if position % count in moments:
                for way in self.ways:
                    self._down(way, position, int(way.excess[position % count]))
                for way in self.ways:
                    self._up(way, position, int(way.excess[position % count]))
        return float(self.best[-1])

    def _down(self, way: _Way, position: int, excess: int) -> None:
        """From behind a version's beginning to the run's start."""
        absences = self.made.around(position)
        later = absences.size.cumsum()
        need = excess - (later[-1:] - later)
        within = (need > 0) & (absences.made >= self.origin)
        since = absences.made[within]
        idle = need[within] / way.down.rate - (self.clock[position] - self.clock[since])
        here = position - self.origin + 1
        self.best[here] = (self.best[since - self.origin] + idle).max(initial=self.best[here])

    def _up(self, way: _Way, position: int, excess: int) -> None:
        """To the start of a next use, from the run's end, or its start where the way does not wait for it."""
        absences = self.used.around(position)
        sooner = absences.size.cumsum()
        need = excess - (sooner[-1:] - sooner)
        within = (need > 0) & (absences.before < self.origin + len(self.best) - 1)
        until = absences.before[within]
        idle = need[within] / way.up.rate - (self.clock[until] - self.clock[position + way.wait])
        here = position - self.origin + 1
        np.maximum.at(self.best, until - self.origin + 1, self.best[here] + idle)
