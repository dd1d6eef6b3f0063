"""PyTorch's caching allocator for CUDA, simulated on addresses: which bytes it takes for which blocks.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp` with its default settings:

- sizes are rounded up to 512 bytes;
- up to 1 MiB a block comes from segments of 2 MiB, below 10 MiB from segments of 20 MiB, else from one of its
  own, rounded up to 2 MiB;
- the smallest free block of the stream that fits is taken, in the order of addresses among equals;
- what is left of it becomes a separate free block if it has 512 bytes (in small segments) or more than
  1 MiB (in large ones), else it is part of the block, and counts;
- a block that is given back is united with free neighbours in its segment, and stays with its stream;
- if the device has no room for a segment, those that are wholly free are returned to it first.

With `expandable_segments:True` (ExpandableSegments) each stream has two segments without an end, one of small
blocks. What does not fit grows them by whole pages, of 2 MiB for small blocks and else 20 MiB, and what is
free at their end is part of it. A remainder of 512 bytes becomes a separate block in both.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable
from itertools import repeat

import numpy as np

from .lifetimes import WORKSPACE, Lifetimes

MIB = 2**20
BLOCK = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
OWN_ROUNDING = 2 * MIB

_ITERATIONS = 2
"""The second iteration finds the segments of the first, as all later ones do."""


class NoRoomError(Exception):
    """Raised if no segment of this size can be reserved."""


class Chunk:
    """A block of a segment, free or taken, with its neighbours in the segment.

    start, size: bytes. requested: bytes before rounding up.
    """

    __slots__ = ("after", "before", "requested", "size", "small", "start", "stream", "taken")

    def __init__(self, start: int, size: int, stream: int, *, small: bool) -> None:
        self.start, self.size, self.stream, self.small = start, size, stream, small
        self.before: Chunk | None = None
        self.after: Chunk | None = None
        self.taken, self.requested = False, 0


class CachingAllocator:
    """The allocator's state: its segments, free blocks and counters.

    allocated: bytes in taken blocks. requested: the same before rounding up. reserved: bytes in segments.
    `…_peak`: the most so far. retries: how often segments were returned for want of room. Streams are
    numbers.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.allocated = self.allocated_peak = self.reserved = self.reserved_peak = 0
        self.requested = self.requested_peak = self.retries = 0
        self._free: dict[tuple[int, bool], list[tuple[int, int, Chunk]]] = {}
        self._segments: dict[int, int] = {}

    def malloc(self, size: int, stream: int = 0) -> Chunk:
        """Allocate bytes on a stream. Raises NoRoomError."""
        rounded = round_up(size, BLOCK)
        small = rounded <= SMALL
        chunk = self._fitting(rounded, stream, small) or self._new_segment(rounded, stream, small)
        if self._splits(chunk.size - rounded, small):
            self._split(chunk, rounded)
        chunk.taken, chunk.requested = True, size
        self.count(chunk)
        return chunk

    def free(self, chunk: Chunk) -> None:
        assert chunk.taken
        chunk.taken = False
        self.discount(chunk)
        for other in (chunk.before, chunk.after):
            if other is not None and not other.taken:
                self._take(other)
                _unite(chunk, other)
        self._offer(chunk)

    def count(self, chunk: Chunk) -> None:
        """Count a chunk as allocated."""
        self.allocated += chunk.size
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        self.requested += chunk.requested
        self.requested_peak = max(self.requested_peak, self.requested)

    def discount(self, chunk: Chunk) -> None:
        self.allocated -= chunk.size
        self.requested -= chunk.requested

    def release_cached(self) -> None:
        """Return segments that are wholly free to the device."""
        for pool in self._free.values():
            for _size, start, chunk in [*pool]:
                if chunk.before is None and chunk.after is None:
                    self._take(chunk)
                    self.release(start)

    def segment(self, size: int) -> int:
        """Reserve a new segment and return its address. Raises NoRoomError."""
        start = self._address(size)
        if start is None:
            self.retries += 1
            self.release_cached()
            start = self._address(size)
        if start is None:
            raise NoRoomError
        self._segments[start] = size
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        return start

    def release(self, start: int) -> None:
        """Return a segment to the device."""
        self.reserved -= self._segments.pop(start)

    def _offer(self, chunk: Chunk) -> None:
        """Add a free chunk to its pool, which is in the order in which chunks are taken."""
        pool = self._free.setdefault((chunk.stream, chunk.small), [])
        insort(pool, (chunk.size, chunk.start, chunk))

    def _take(self, chunk: Chunk) -> None:
        """Remove a free chunk from its pool."""
        pool = self._free[chunk.stream, chunk.small]
        del pool[bisect_left(pool, (chunk.size, chunk.start))]

    def _fitting(self, size: int, stream: int, small: bool) -> Chunk | None:
        pool = self._free.get((stream, small), [])
        place = bisect_left(pool, (size,))
        return pool.pop(place)[-1] if place < len(pool) else None

    def _splits(self, left: int, small: bool) -> bool:
        """Tell whether so many bytes left of a block become a separate one."""
        return left >= BLOCK if small else left > SMALL

    def _new_segment(self, size: int, stream: int, small: bool) -> Chunk:
        segment = segment_size(size)
        return Chunk(self.segment(segment), segment, stream, small=small)

    def _address(self, size: int) -> int | None:
        """Return the first gap between segments; addresses go to twice the capacity, memory does not."""
        if self.reserved + size > self.capacity:
            return None
        start = 0
        for segment in sorted(self._segments):
            if segment - start >= size:
                break
            start = segment + self._segments[segment]
        return start if start + size <= 2 * self.capacity else None

    def _split(self, chunk: Chunk, size: int) -> None:
        rest = Chunk(chunk.start + size, chunk.size - size, chunk.stream, small=chunk.small)
        rest.before, rest.after = chunk, chunk.after
        if chunk.after is not None:
            chunk.after.before = rest
        chunk.after, chunk.size = rest, size
        self._offer(rest)


class ExpandableSegments(CachingAllocator):
    """The allocator with segments that grow, on a device with room for everything."""

    def __init__(self) -> None:
        super().__init__(0)
        self._last: dict[tuple[int, bool], Chunk] = {}

    def release_cached(self) -> None:
        """Raise: pages are unmapped only if the device is full."""
        raise NotImplementedError

    def _splits(self, left: int, small: bool) -> bool:
        return left >= BLOCK

    def _new_segment(self, size: int, stream: int, small: bool) -> Chunk:
        last = self._last.get((stream, small))
        if last is None:
            # Segments are far apart: only addresses in one of them are compared.
            chunk = Chunk(0, 0, stream, small=small)
        elif last.taken:
            chunk = Chunk(last.start + last.size, 0, stream, small=small)
            last.after, chunk.before = chunk, last
        else:
            chunk = last
            self._take(chunk)
        grown = round_up(size - chunk.size, SMALL_SEGMENT if small else LARGE_SEGMENT)
        chunk.size += grown
        self.reserved += grown
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        self._last[stream, small] = chunk
        return chunk

    def _split(self, chunk: Chunk, size: int) -> None:
        super()._split(chunk, size)
        if self._last[chunk.stream, chunk.small] is chunk:
            assert chunk.after is not None
            self._last[chunk.stream, chunk.small] = chunk.after

    def free(self, chunk: Chunk) -> None:
        after = chunk.after
        super().free(chunk)
        # A last block that was free is part of this one now.
        if after is not None and chunk.after is None:
            self._last[chunk.stream, chunk.small] = chunk


def _unite(chunk: Chunk, other: Chunk) -> None:
    """Merge a neighbour into a chunk."""
    if other is chunk.before:
        chunk.start, chunk.before = other.start, other.before
        if other.before is not None:
            other.before.after = chunk
    else:
        chunk.after = other.after
        if other.after is not None:
            other.after.before = chunk
    chunk.size += other.size


def round_up(size: int, unit: int) -> int:
    return max(unit, -(-size // unit) * unit)


def segment_size(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < OWN_SEGMENT else round_up(size, OWN_ROUNDING)


def reserved_peak(lifetimes: Lifetimes, *, expandable: bool = False) -> int:
    """Simulate the allocator over a schedule's copies and return the bytes of its segments at their peak.

    Fragmentation counts: free bytes between blocks are reserved. The device has room for everything. Copies
    that live through the whole iteration are allocated first, as weights are.

    expandable: with `expandable_segments:True`.
    """
    allocator = ExpandableSegments() if expandable else CachingAllocator(sys.maxsize)
    serve(allocator, repeat(lifetimes, _ITERATIONS))
    return allocator.reserved_peak


def serve(allocator: CachingAllocator, iterations: Iterable[Lifetimes]) -> None:
    """Let an allocator serve iterations that follow each other. Raises NoRoomError.

    They are of one schedule, with tensors of other sizes. A copy that lives through the whole iteration is
    allocated anew when its size changes, as a batch is. Rows whose tensor is below WORKSPACE are of a stream
    of their own, one per number.
    """
    lasting, ending = list[tuple[int, Chunk]](), defaultdict[int, list[Chunk]](list)
    begin = now = 0
    for rows in iterations:
        streams = np.maximum(0, WORKSPACE - rows.tensor)
        columns = (column.tolist() for column in (rows.size, rows.start, rows.end, streams))
        for row, (size, start, end, stream) in enumerate(zip(*columns, strict=True)):
            if end - start >= rows.steps:
                if row == len(lasting):
                    lasting.append((size, allocator.malloc(size, stream)))
                elif lasting[row][0] != size:
                    allocator.free(lasting[row][1])
                    lasting[row] = size, allocator.malloc(size, stream)
                continue
            while now <= begin + start:
                for chunk in ending.pop(now, ()):
                    allocator.free(chunk)
                now += 1
            ending[begin + end].append(allocator.malloc(size, stream))
        begin += rows.steps
