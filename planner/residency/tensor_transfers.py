"""The transfers and deletes of one tensor as rows, and its bytes by moment: what assembly.py merges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ...graphs.machine import Links, Memory
from ..schedule.schedule import Step, delete, offload, prefetch
from .copies_over_time import Copies, Interval
from .lifetimes import Lifetime, count_moments, position_of
from .residency import Residency, derive_all_copies, slot_before_use

HOPS = len(Memory) - 1
"""The most copies one after the other that bring a tensor to the device: hop h copies to memory h."""

AS_EARLY_AS_WANTED = 1 << 40
"""The moment of a copy that look-ahead and memory place."""


class StepKind(IntEnum):
    """The kinds of steps before one run, in their order there: what leaves first, then what comes."""

    DELETE_USED = 0
    OFFLOAD = 1
    DISK_WRITE = 2
    DELETE = 3
    DISK_READ = 4
    DELETE_READ = 5
    PREFETCH = 6


FETCH_KINDS = (int(StepKind.PREFETCH), int(StepKind.DISK_READ))
"""The kind of a copy up by the memory that it arrives in."""

MOVE = np.dtype([(name, np.int64) for name in ("slot", "kind", "order", "verb", "tensor", "where")])
"""A step whose slot is known. order: among those of its kind in the slot, a moment."""

FETCH = np.dtype(
    [
        *((name, np.int64) for name in ("tensor", "use", "earliest", "size", "source")),
        *((name, np.int64, (HOPS,)) for name in ("shift", "moment")),
        ("seconds", np.float64, (HOPS,)),
    ]
)
"""The copies that bring a tensor to the device for a use.

use, earliest: moments; `earliest`, before which no copy can stand, may be in the iteration before.
source: the memory that is copied from at first.
Per hop: shift, how many slots later it stands than look-ahead and the order of need say, out of that order;
moment, where it stands in any case, or AS_EARLY_AS_WANTED; seconds that the copy takes.
"""

Spans = tuple[tuple[int, int], ...]
"""Moments from … to (excluded), within an iteration."""


class TensorTransfers(NamedTuple):
    """What one tensor adds to a schedule.

    moves, fetches: rows MOVE and FETCH. spans: when it is on the device, and when on the host, with every
    fetch just before its use. start: the memories in which it is when an iteration starts, as bits.
    """

    moves: Any
    fetches: Any
    spans: tuple[Spans, Spans]
    start: int


class _Fetch(NamedTuple):
    """Fetch for a use, with the moments of the use and of the earliest slot."""

    use: int
    earliest: int
    from_disk: bool


def derive_transfers(
    sizes: Sequence[int], links: Links, residency: Residency, lifetimes: Iterable[Lifetime]
) -> TensorTransfers:
    """Derive what one tensor adds to a schedule.

    sizes: bytes per tensor of the graph. lifetimes: the tensor's, in order.
    """
    moments = count_moments(len(residency.runs))
    moves, fetches = list[tuple[int, ...]](), list[tuple[Any, ...]]()
    device_spans, host_spans, start = list[tuple[int, int]](), list[tuple[int, int]](), 0
    for lifetime in lifetimes:
        copies = derive_all_copies(residency, lifetime)
        device, host, _disk = copies
        found = list(_fetches(lifetime, device, host, moments))
        moves += _moves(lifetime.tensor, copies, {fetch.use - 1 for fetch in found}, moments)
        fetches += [_row(lifetime.tensor, sizes, links, residency, fetch) for fetch in found]
        first = None if lifetime.persistent else lifetime.first_moment
        device_spans += _spans(device, first, moments, around=lifetime.persistent)
        host_spans += _spans(host, None, moments, around=lifetime.persistent)
        if lifetime.persistent:
            start = _memories_at_start(copies, moments)
    return TensorTransfers(
        np.array(moves, MOVE), np.array(fetches, FETCH), (tuple(device_spans), tuple(host_spans)), start
    )


def _fetches(lifetime: Lifetime, device: Copies, host: Copies, moments: int) -> Iterator[_Fetch]:
    """Find the fetches of a lifetime, and how early each can stand: after the device copy before it has gone,
    after the last change below, and not before the host copy that it reads can be there."""
    intervals = [interval for interval in device.upper if interval.end is not None or interval.fetched]
    changes = [use.moment for use in lifetime.uses if use.changes and use.memory != Memory.DEVICE]
    for index, interval in enumerate(intervals):
        if interval.use is None:
            continue
        use = interval.use % moments
        shift = interval.use - use
        bounds = [change + 1 - moments * (change > use) for change in changes]
        before = intervals[index - 1] if index or lifetime.persistent else None
        if before is not None and before.end is not None:
            bounds.append(before.end - (0 if index else moments) - shift)
        from_disk, readable = _host_copy(host, use - 1, moments)
        yield _Fetch(use, max(*bounds, readable), from_disk)


def _host_copy(host: Copies, moment: int, moments: int) -> tuple[bool, int]:
    """Whether the host copy for a fetch just after a moment is read from the disk for it alone, and from when
    on it can be there: an iteration ahead if nothing stands against it."""
    gone = 0
    for copy in host.upper:
        if copy.use is not None and copy.use % moments == moment:
            # Not before the last copy on the host has gone, in the iteration of this use. And all in one
            # iteration: `initial` has no word for a tensor that is on the disk and elsewhere.
            return True, max(0, gone - (copy.use - moment))
        if copy.end is not None:
            gone = copy.end - copy.end % moments % 2  # in the slot of the delete, which stands before reads
        for start, end in ((copy.start, copy.end), (copy.start - moments, copy.end and copy.end - moments)):
            if copy.fetched and start <= moment and (end is None or moment < end):
                return False, start  # read for another use before
    return False, -moments


def _row(x: int, sizes: Sequence[int], links: Links, residency: Residency, fetch: _Fetch) -> tuple[Any, ...]:
    """A row FETCH."""
    moments, place, size = count_moments(len(residency.runs)), (x, position_of(fetch.use)), sizes[x]
    placed = [AS_EARLY_AS_WANTED] * HOPS
    for hop, slots in enumerate((residency.prefetch_slots, residency.read_slots)):
        if place in slots:
            placed[hop] = slot_before_use(slots[place], fetch.use, moments)
    source = Memory.DISK if fetch.from_disk else Memory.HOST
    used = (links.h2d, links.disk_read)[:source]
    seconds = [link.seconds(float(size)) if link else 0.0 for link in used]
    seconds += [0.0] * (HOPS - len(seconds))
    return x, fetch.use, fetch.earliest, size, int(source), (0,) * HOPS, tuple(placed), tuple(seconds)


def _moves(
    x: int, copies: tuple[Copies, Copies, Copies], fetched: set[int], moments: int
) -> Iterator[tuple[int, ...]]:
    """Find the transfers and deletes of a lifetime as rows MOVE, without the fetches to the device.

    fetched: the moments just before the uses that these are for.
    """
    device, host, disk = copies

    def row(moment: int, kind: StepKind, order: int, step: Step) -> tuple[int, ...]:
        return position_of(moment), kind, order, *step

    for kind, upper, step in (
        (StepKind.OFFLOAD, device, offload(x)),
        (StepKind.DISK_WRITE, host, offload(x, Memory.DISK)),
    ):
        for moment in upper.stored:
            yield row(moment % moments, kind, moment % moments, step)
    for copy in host.upper:
        if copy.use is not None and copy.use % moments not in fetched:
            start = copy.start % moments
            yield row(start, StepKind.DISK_READ, start + copy.use - copy.start, prefetch(x, Memory.HOST))
    for memory, upper, after_run, after_transfer in (
        (Memory.DEVICE, device, StepKind.DELETE, StepKind.DELETE),
        (Memory.HOST, host, StepKind.DELETE_USED, StepKind.DELETE),
        (Memory.DISK, disk, StepKind.DELETE_USED, StepKind.DELETE_READ),
    ):
        stored = {moment % moments for moment in upper.stored}
        for copy in upper.upper:
            if copy.end is not None:
                moment = copy.end % moments
                # A copy that is read by a transfer in this very slot is deleted after the transfer.
                moved = moment % 2 or moment in stored
                yield row(moment, after_transfer if moved else after_run, moment, delete(x, memory))


def _spans(copies: Copies, first: int | None, moments: int, *, around: bool) -> Iterator[tuple[int, int]]:
    """Find the moments at which a copy is in the upper memory.

    first: of the first contribution, from which on a copy that is made there takes its bytes.
    around: the last copy stays until the next iteration's first.
    """
    for index, copy in enumerate(copies.upper):
        made = index == 0 and first is not None and not copy.fetched
        start = min(first, copy.start) if made and first is not None else copy.start
        end = start + moments if copy.end is None and around else copy.end or moments
        yield from _wrapped(start, end, moments)


def _wrapped(start: int, end: int, moments: int) -> Iterator[tuple[int, int]]:
    """Split [start, end) at the ends of iterations, as moments within one."""
    while start < end:
        low = start % moments
        high = min(moments, low + end - start)
        yield low, high
        start += high - low


def _memories_at_start(copies: Sequence[Copies], moments: int) -> int:
    """The memories with a copy of a persistent tensor between two iterations, as bits."""

    def stays(copy: Interval) -> bool:
        return copy.end is None or copy.start // moments < copy.end // moments

    return sum(1 << memory for memory in Memory if any(map(stays, copies[memory].upper)))
