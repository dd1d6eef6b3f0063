"""Idle time that no order of transfers avoids, if nothing is recomputed: a lower bound in closed form.

While kernel t runs, at least X = (bytes that are needed then or later) − limit are not on the device. An
offloaded tensor has a copy below that was made since its version began, and comes up before its next use:

    down   those whose version began at s or later hold at least X − (bytes offloaded that began before s);
           they pass the link between s and the start of t, as the memory that t runs in has to wait for them
    up     those whose next use is at e or before hold at least X − (bytes offloaded that are used after e);
           they pass it between the end of t and e

A link moves at most β bytes a second (`Link.best_rate`), so within such a window the device idles for
bytes / β less the seconds of the kernels in it. Windows add up if no two share a moment between two kernels:
the best set of them is found along the iteration. Transfers to the disk count likewise, with the host's
capacity in the limit. A copy up from the disk may come long before t, if a kernel has waited for what left
its space on the host (formats.md, In flight): there X bytes come up in an iteration.

The bound holds for schedules that run each operation once, in traced order: for all but those in other
orders, if none may be recomputed. Latencies are left out. Around the iteration's end windows count from
several origins, of which the best is taken. O(moments · uses of tensors); of many moments those of the
highest levels in equal parts.

Seconds are counted in ticks, whole numbers of 2^-k s: kernels' rounded up, transfers' rounded down, so the
idle time is never too long, and sums are exact.

Developed for memplan; the offloading program (program.py) has it all and more, at a few moments only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from fractions import Fraction
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.adjacency import Adjacency
from ....graphs.graph import Graph
from ....graphs.machine import Link, Machine
from ....graphs.outward import float_below, sum_below
from ....planner.bounds import time_bound

Ints = NDArray[np.int64]

WORK = 20_000_000
"""Most offload intervals to look at from one origin, over all moments."""

LOWER = 1.0 - 2.0**-50
"""Factor that makes a quotient of two numbers, all rounded to the nearest float, surely not too large."""

TICK_BITS = 60
"""Exponent of the number of ticks that no sum reaches."""

ORIGINS = 4
"""Number of origins besides the iteration's start, spread over all after the last moment above the limit."""


class _Intervals(NamedTuple):
    """Offload intervals: between two uses of a tensor, in one iteration or across its end.

    made: the position after the change that began its version, below all others if nothing ever changes it.
    """

    size: Ints
    after: Ints
    before: Ints
    made: Ints

    def by(self, keys: Ints) -> _Intervals:
        order = np.argsort(keys, kind="stable")
        return _Intervals(*(column[order] for column in self))

    def around(self, position: int) -> _Intervals:
        return _Intervals(*(column[(self.after < position) & (position < self.before)] for column in self))


class _Variant(NamedTuple):
    """A link and its excess, for windows of transfers down and up.

    excess: per position, the bytes that must lie below.
    up: None if no window of transfers up is known.
    """

    excess: Ints
    down: Link
    up: Link | None


def link_bound(
    graph: Graph, machine: Machine, limit: int, proceed: Callable[[], bool] = lambda: True
) -> float:
    """Compute a bound on the period, in seconds, with `limit` bytes on the device; ∞: there is no schedule.

    It is only the time of all operations if some may be recomputed or have execution variants, or if there
    are no links.

    proceed: false once the time is over, which only makes the bound lower.
    """
    seconds, links, host = time_bound(graph), machine.links, machine.host_capacity
    operations = graph.operations
    reruns = operations.recompute & (operations.mutates.counts() == 0)
    # The argument below needs every operation once, in one variant: else only the sum of the times is known.
    if operations.modes or reruns.any() or graph.tensors.spread or links.d2h is None or links.h2d is None:
        return seconds
    touches = _touches(graph)
    level = _level(graph, touches)
    variants = [_Variant(level - limit, links.d2h, links.h2d)]
    if host is not None and links.disk_write is not None and links.disk_read is not None:
        variants.append(_Variant(level - limit - host, links.disk_write, None))
        most = int(variants[-1].excess.max(initial=0))
        seconds = max(seconds, float_below(Fraction(most) / Fraction(links.disk_read.best_rate)))
    # Nowhere to put the bytes: no schedule at all.
    elif host is not None and (level > limit + host).any():
        return inf
    if not (level > limit).any():
        return seconds
    intervals = _intervals(graph, touches)
    return max(seconds, sum_below([*operations.time.tolist(), _idle(graph, intervals, variants, proceed)]))


class _Touches(NamedTuple):
    """Touches of all tensors that may leave the device, by tensors, then as the operations run.

    first, last: whether the touch is the first or last of its tensor.
    cyclic: whether the tensor lasts for iterations.
    """

    tensor: Ints
    operation: Ints
    first: NDArray[np.bool_]
    last: NDArray[np.bool_]
    cyclic: NDArray[np.bool_]


def _touches(graph: Graph) -> _Touches:
    users = _keys(graph, graph.producers, graph.consumers, graph.mutators)
    tensor, operation = np.divmod(users, max(1, len(graph.operations)))
    may_leave = ~graph.resident[tensor] | graph.persistent[tensor]
    tensor, operation = tensor[may_leave], operation[may_leave]
    first, last = np.diff(tensor, prepend=-1) != 0, np.diff(tensor, append=-1) != 0
    return _Touches(tensor, operation, first, last, graph.persistent[tensor])


def _keys(graph: Graph, *users: Adjacency) -> Ints:
    """Return the sorted keys tensor · operations + operation of all these."""
    return np.unique(np.concatenate([rows.rows() * len(graph.operations) + rows.columns for rows in users]))


def _level(graph: Graph, touches: _Touches) -> Ints:
    """Return per operation the bytes that are needed then or later, with the operation's own.

    Persistent tensors that nothing touches may lie anywhere, on the disk too, and don't count.
    """
    count, sizes = len(graph.operations), graph.tensors.bytes
    results = np.isin(touches.tensor, list(graph.results))
    change = np.zeros(count + 1, np.int64)
    begin, end = touches.first, touches.last & ~touches.cyclic
    # Persistent tensors are needed all through the iteration, others from their first touch on.
    at = np.where(touches.cyclic, 0, touches.operation)
    np.add.at(change, at[begin], sizes[touches.tensor[begin]])
    np.subtract.at(change, np.where(results, count, touches.operation + 1)[end], sizes[touches.tensor[end]])
    change[0] += sizes[graph.resident & ~graph.persistent].sum()
    return change.cumsum()[:-1] + graph.operations.workspace


def _intervals(graph: Graph, touches: _Touches) -> _Intervals:
    """Collect offload intervals: of an iteration, of the next, and those that last from the one before."""
    tensor, after, first, last, cyclic = touches
    count, never = len(graph.operations), 4 * len(graph.operations)
    # The next touch; of a tensor's last one it is overwritten below.
    before = np.roll(after, -1)
    begin = np.flatnonzero(first)
    ends = np.where(cyclic, after[np.repeat(begin, np.diff(begin, append=len(after)))] + count, never)
    before[last] = ends[last]
    stays = ~last | cyclic | np.isin(tensor, list(graph.results))
    changes = _keys(graph, graph.producers, graph.mutators)
    made = _latest(changes, tensor * count + after, tensor, count)
    # A version that began in the iteration before, at a position below 0; nothing ever changes it: far below.
    of_iteration_before = _latest(changes, tensor * count + count - 1, tensor, count) - count
    made = np.where(made > 0, made, np.where(of_iteration_before > -count, of_iteration_before, -never))
    rows = np.column_stack([graph.tensors.bytes[tensor], after, before, made])
    offloaded = stays & (before > after + 1)
    iterations = ((-1, offloaded & cyclic), (0, offloaded), (1, offloaded))
    shifts = [rows[chosen] + np.array([0, k, k, k]) * count for k, chosen in iterations]
    return _Intervals(*np.concatenate(shifts).astype(np.int64).T)


def _latest(changes: Ints, keys: Ints, tensor: Ints, count: int) -> Ints:
    """Return the position after the latest of the tensor's changes up to a key; 0 if there is none."""
    place = np.searchsorted(changes, keys, side="right") - 1
    found = np.append(changes, -count)[place]
    return np.where(found // count == tensor, found % count + 1, 0)


def _idle(
    graph: Graph, intervals: _Intervals, variants: Sequence[_Variant], proceed: Callable[[], bool]
) -> float:
    """Return the idle seconds, from the best of the origins."""
    count = len(graph.operations)
    above = np.flatnonzero(variants[0].excess > 0)
    if len(above) > (most := max(1, WORK // max(1, len(intervals.size)))):
        parts = np.array_split(above, most)
        above = np.array([part[variants[0].excess[part].argmax()] for part in parts])
    low, room = int(above[-1]) + 1, count - 1 - int(above[-1] - above[0])
    origins = {0, *((low + room * k // (ORIGINS - 1)) % count for k in range(ORIGINS))}
    made, used = intervals.by(-intervals.made), intervals.by(intervals.before)
    moments = {*above.tolist()}
    bits = _tick_bits(graph, variants)
    # Two iterations, since windows go on across the end. Rounded up: kernels hide more than they do, so idle
    # time is never too long.
    ticks = np.ceil(np.ldexp(np.tile(graph.operations.time, 2), bits)).astype(np.int64)
    clock = np.concatenate((np.zeros(1, np.int64), ticks.cumsum()))
    iterations = (
        _Iteration(origin=origin, clock=clock, bits=bits, variants=variants, made=made, used=used)
        for origin in sorted(origins)
    )
    return float_below(
        max(iteration.idle(moments, proceed) for iteration in iterations) / Fraction(2) ** bits
    )


def _tick_bits(graph: Graph, variants: Sequence[_Variant]) -> int:
    """Return the bits of a tick, 2^-bits seconds.

    Ticks are as short as the sums of an iteration, with a window for each gap, allow.
    """
    links = [(variant.excess, link) for variant in variants for link in (variant.down, variant.up) if link]
    longest = max(float(excess.max(initial=0)) / link.best_rate for excess, link in links)
    gaps = len(graph.operations) + 1
    seconds = 2.0 * float(graph.operations.time.sum()) + gaps * longest
    return TICK_BITS - int(np.frexp(seconds)[1]) - 1


class _Iteration:
    """The iteration from one origin.

    clock: ticks of 2^-bits s before each position of two iterations.
    made, used: offload intervals, those of the latest versions first, those of the next uses first.
    best: after so many gaps, the idle ticks that windows which share no gap prove; a gap is what passes right
        before a run.
    """

    def __init__(
        self,
        origin: int,
        clock: Ints,
        bits: int,
        variants: Sequence[_Variant],
        made: _Intervals,
        used: _Intervals,
    ) -> None:
        self.origin, self.clock, self.bits, self.variants = origin, clock, bits, variants
        self.made, self.used = made, used
        self.best = np.zeros(len(clock) // 2 + 1, np.int64)

    def idle(self, moments: Container[int], proceed: Callable[[], bool]) -> int:
        count = len(self.best) - 1
        for place in range(count):
            # More gaps prove no less idle time.
            self.best[place + 1] = max(self.best[place + 1], self.best[place])
            position = self.origin + place
            if position % count in moments:
                if not proceed():
                    break
                for variant in self.variants:
                    self._down(variant, position, int(variant.excess[position % count]))
                for variant in self.variants:
                    if variant.up:
                        self._up(variant.up, position, int(variant.excess[position % count]))
        return int(self.best.max())

    def _pass(self, need: Ints, link: Link) -> Ints:
        """Return the ticks that so many bytes take on a link, at least."""
        return np.floor(np.ldexp(need / link.best_rate * LOWER, self.bits)).astype(np.int64)

    def _down(self, variant: _Variant, position: int, excess: int) -> None:
        """Add the windows from the beginning of a version to the start of the run."""
        intervals = self.made.around(position)
        later = intervals.size.cumsum()
        # What those that began earlier can hold of the excess is not this window's.
        need = excess - (later[-1:] - later)
        # Windows from before the origin would be counted in two iterations.
        within = (need > 0) & (intervals.made >= self.origin)
        since = intervals.made[within]
        idle = self._pass(need[within], variant.down) - (self.clock[position] - self.clock[since])
        here = position - self.origin + 1
        self.best[here] = (self.best[since - self.origin] + idle).max(initial=self.best[here])

    def _up(self, link: Link, position: int, excess: int) -> None:
        """Add the windows from the end of the run to the start of a next use."""
        intervals = self.used.around(position)
        sooner = intervals.size.cumsum()
        need = excess - (sooner[-1:] - sooner)
        within = (need > 0) & (intervals.before < self.origin + len(self.best) - 1)
        until = intervals.before[within]
        idle = self._pass(need[within], link) - (self.clock[until] - self.clock[position + 1])
        here = position - self.origin + 1
        np.maximum.at(self.best, until - self.origin + 1, self.best[here] + idle)
