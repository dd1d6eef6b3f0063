"""The transfers and deletes of one tensor as rows, and its bytes by moment: what assembly.py merges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...graphs.machine import MOST_MEMORIES, Hierarchy, Link, Memory
from ..schedule.schedule import ScheduleStep, delete, offload, prefetch
from .copies_over_time import Copies, Interval
from .lifetimes import Lifetime, count_moments, position_of
from .residency import Residency, derive_all_copies, slot_before_use

AS_EARLY_AS_WANTED = 1 << 40
"""The moment of a copy that look-ahead and memory place."""


class StepKind(IntEnum):
    """The kinds of steps before one run, in their order there: what leaves first, then what comes.

    WRITE: to any memory below the host. SCATTER: takes memory on the device for a share, so it comes after
    the deletes of what else leaves, and the gradient that it reads is deleted after it. READ: to the host;
    the kinds before it are reads to deeper memories, which come before those that they feed.
    """

    DELETE_USED = 0
    OFFLOAD = 1
    WRITE = 2
    DELETE = 3
    SCATTER = 4
    DELETE_SCATTERED = 5
    READ = DELETE_SCATTERED + MOST_MEMORIES
    DELETE_READ = READ + 1
    PREFETCH = READ + 2


FETCH_KINDS = (int(StepKind.PREFETCH), *(int(StepKind.READ) - hop for hop in range(MOST_MEMORIES - 2)))
"""The kind of a copy up by the memory that it arrives in."""

FIXED_STEP = np.dtype([(name, np.int64) for name in ("slot", "kind", "order", "verb", "tensor", "where")])
"""A step whose slot is known. order: among those of its kind in the slot, a moment."""


@cache
def fetch_type(hops: int) -> Any:
    """Return the record of the copies that bring a tensor to the device for a use.

    hops: the most copies one after the other, one less than the machine's memories; hop h copies to memory h.

    use, earliest: moments; `earliest`, before which no copy can come, may be in the iteration before.
    source: the memory that is copied from at first.
    Per hop: shift, how many slots later it comes than look-ahead and the order of need say, out of that
    order; moment, a fixed one, or AS_EARLY_AS_WANTED; seconds that the copy takes.
    """
    return np.dtype(
        [
            *((name, np.int64) for name in ("tensor", "use", "earliest", "size", "source")),
            *((name, np.int64, (hops,)) for name in ("shift", "moment")),
            ("seconds", np.float64, (hops,)),
        ]
    )


Spans = tuple[tuple[int, int], ...]
"""Moments from … to (excluded), within an iteration."""


class TensorTransfers(NamedTuple):
    """The transfers and deletes of one tensor, as a part of a schedule.

    moves, fetches: rows MOVE and of `fetch_type`. spans: when it is in each memory but the last, with every
    fetch just before its use. start: the memories in which it is when an iteration starts, as bits.
    """

    moves: Any
    fetches: Any
    spans: tuple[Spans, ...]
    start: int


class _Fetch(NamedTuple):
    """Fetch for a use, with the moments of the use and of the earliest slot, and where it comes from."""

    use: int
    earliest: int
    source: int


def derive_transfers(
    sizes: Sequence[int], hierarchy: Hierarchy, residency: Residency, lifetimes: Iterable[Lifetime]
) -> TensorTransfers:
    """Derive what one tensor adds to a schedule.

    sizes: bytes per tensor of the graph. lifetimes: the tensor's, in order.
    """
    moments, hops = count_moments(len(residency.runs)), len(hierarchy) - 1
    moves, fetches, start = list[tuple[int, ...]](), list[tuple[Any, ...]](), 0
    spans = [list[tuple[int, int]]() for _hop in range(hops)]
    for lifetime in lifetimes:
        copies = derive_all_copies(residency, lifetime, hops + 1)
        found = list(_fetches(lifetime, copies, moments))
        moves += _moves(lifetime, copies, {fetch.use - 1 for fetch in found}, moments)
        fetches += [_row(lifetime, sizes, hierarchy, residency, fetch) for fetch in found]
        first = None if lifetime.persistent else lifetime.first_moment
        for memory in range(hops):
            made = first if memory == Memory.DEVICE else None
            scattered = lifetime.spread and memory == Memory.DEVICE
            spans[memory] += _spans(
                copies[memory], made, moments, around=lifetime.persistent, scattered=scattered
            )
        if lifetime.persistent:
            start = _memories_at_start(copies, moments)
    return TensorTransfers(
        np.array(moves, FIXED_STEP), np.array(fetches, fetch_type(hops)), tuple(map(tuple, spans)), start
    )


def _fetches(lifetime: Lifetime, copies: Sequence[Copies], moments: int) -> Iterator[_Fetch]:
    """Find the fetches of a lifetime, and how early each can come: after the device copy before it has gone,
    after the last change below, and not before the copies that it reads can be there."""
    intervals = [
        interval for interval in copies[Memory.DEVICE].upper if interval.end is not None or interval.fetched
    ]
    changes = [use.moment for use in lifetime.uses if use.changes and use.memory != Memory.DEVICE]
    for index, interval in enumerate(intervals):
        if interval.use is None:
            continue
        use = interval.use % moments
        shift = interval.use - use
        # Not before the change below whose value it brings, of the iteration before if that comes later in
        # the list.
        bounds = [change + 1 - moments * (change > use) for change in changes]
        before = intervals[index - 1] if index or lifetime.persistent else None
        if before is not None and before.end is not None:
            bounds.append(before.end - (0 if index else moments) - shift)
        source: int = Memory.DEVICE
        is_fetched = True
        while is_fetched:
            source += 1
            is_fetched, readable = _lower_copy(copies[source], use - 1, moments)
            bounds.append(readable)
        yield _Fetch(use, max(bounds), source)


def _lower_copy(copies: Copies, moment: int, moments: int) -> tuple[bool, int]:
    """Tell whether a fetch just after a moment has a copy below read for it alone, and from when on.

    The copy is in the memory below the device, read from the one below that. It can be there an iteration
    ahead if nothing stands against it.
    """
    gone = 0
    for copy in copies.upper:
        if copy.use is not None and copy.use % moments == moment:
            # Not before the last copy in this memory has gone, in the iteration of this use. And all in one
            # iteration: a tensor starts in one memory, or on device and host (`may_start`).
            return True, max(0, gone - (copy.use - moment))
        if copy.end is not None:
            gone = copy.end - copy.end % moments % 2  # in the slot of the delete, which comes before reads
        for start, end in ((copy.start, copy.end), (copy.start - moments, copy.end and copy.end - moments)):
            if copy.fetched and start <= moment and (end is None or moment < end):
                return False, start  # read for another use before
    return False, -moments


def _row(
    lifetime: Lifetime, sizes: Sequence[int], hierarchy: Hierarchy, residency: Residency, fetch: _Fetch
) -> tuple[Any, ...]:
    """Return a row of `fetch_type`."""
    hops, x = len(hierarchy) - 1, lifetime.tensor
    moments, place, size = count_moments(len(residency.runs)), (x, position_of(fetch.use)), sizes[x]
    placed = [AS_EARLY_AS_WANTED] * hops
    for hop, slots in enumerate((residency.prefetch_slots, residency.read_slots)):
        if place in slots:
            placed[hop] = slot_before_use(slots[place], fetch.use, moments)
    rows: list[Link | None] = [tier.read for tier in hierarchy.tiers[Memory.HOST : fetch.source + 1]]
    used = [hierarchy.peers] if lifetime.spread else rows
    seconds = [float(link.seconds(float(size))) if link else 0.0 for link in used]
    seconds += [0.0] * (hops - len(seconds))
    return x, fetch.use, fetch.earliest, size, int(fetch.source), (0,) * hops, tuple(placed), tuple(seconds)


def _moves(
    lifetime: Lifetime, copies: Sequence[Copies], fetched: set[int], moments: int
) -> Iterator[tuple[int, ...]]:
    """Find the transfers and deletes of a lifetime as rows MOVE, without the fetches to the device.

    fetched: the moments just before the uses that these are for.
    """
    x = lifetime.tensor
    leave = StepKind.SCATTER if lifetime.spread else StepKind.OFFLOAD
    left = StepKind.DELETE_SCATTERED if lifetime.spread else StepKind.DELETE

    def row(moment: int, kind: int, order: int, step: ScheduleStep) -> tuple[int, ...]:
        return position_of(moment), kind, order, *step

    for memory, here in enumerate(copies):
        kind = leave if memory == Memory.DEVICE else StepKind.WRITE
        for moment in here.stored:
            yield row(moment % moments, kind, moment % moments, offload(x, memory + 1))
        for copy in here.upper if memory > Memory.DEVICE else ():
            if copy.use is not None and copy.use % moments not in fetched:
                start = copy.start % moments
                # By the moment of use, so that several reads of a slot come in the order of need.
                order = start + copy.use - copy.start
                yield row(start, FETCH_KINDS[memory], order, prefetch(x, memory))
        after_run = StepKind.DELETE if memory == Memory.DEVICE else StepKind.DELETE_USED
        after_transfer = StepKind.DELETE if memory <= Memory.HOST else StepKind.DELETE_READ
        stored = {moment % moments for moment in here.stored}
        for copy in here.upper:
            if copy.end is not None:
                moment = copy.end % moments
                # A copy that is read by a transfer in this very slot is deleted after the transfer.
                moved = moment % 2 or moment in stored
                kind = after_transfer if moved else after_run
                if memory == Memory.DEVICE and moment in stored:
                    kind = left
                yield row(moment, kind, moment, delete(x, memory))


def _spans(
    copies: Copies, first: int | None, moments: int, *, around: bool, scattered: bool
) -> Iterator[tuple[int, int]]:
    """Find the moments at which a copy is in the upper memory.

    first: of the first contribution, from which on a copy that is made there takes its bytes.
    around: the last copy stays until the next iteration's first. scattered: the copy below, which is made
    in a slot, takes memory next to it: it is there in the slot of its delete too.
    """
    for index, copy in enumerate(copies.upper):
        made = index == 0 and first is not None and not copy.fetched
        start = min(first, copy.start) if made and first is not None else copy.start
        end = start + moments if copy.end is None and around else copy.end or moments
        # Gradient and share are both there while the scatter runs.
        if scattered and copy.end in copies.stored:
            end += 1
        yield from _wrapped(start, end, moments)


def _wrapped(start: int, end: int, moments: int) -> Iterator[tuple[int, int]]:
    """Split [start, end) at the ends of iterations, as moments within one."""
    while start < end:
        low = start % moments
        high = min(moments, low + end - start)
        yield low, high
        start += high - low


def _memories_at_start(copies: Sequence[Copies], moments: int) -> int:
    """Return the memories with a copy of a persistent tensor between two iterations, as bits."""

    def stays(copy: Interval) -> bool:
        # It spans an iteration's end.
        return copy.end is None or copy.start // moments < copy.end // moments

    return sum(1 << memory for memory, here in enumerate(copies) if any(map(stays, here.upper)))
