"""A segment of the device in which a plan says what lies where, beside the allocator's own."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from memplan.devices.device.planned_arena import PlannedRooms
from memplan.planner.addresses.caching_allocator import BLOCK, OWN_ROUNDING, CachingAllocator, Chunk, round_up


class Arena(PlannedRooms):
    """What lies in it is counted as allocated, the arena itself as reserved."""

    def __init__(
        self, memory: int, allocator: CachingAllocator, size: int, gone: Callable[[int], None]
    ) -> None:
        """memory: the device's address. gone: takes the segment's when nobody has the arena any more. Raises
        NoRoomError."""
        self._allocator = allocator
        self._start = allocator.segment(round_up(size, OWN_ROUNDING))
        super().__init__(memory + self._start, size)
        weakref.finalize(self, gone, self._start).atexit = False

    def place(self, size: int, stream: int) -> Chunk | None:
        """None where it has no place: see `take`."""
        offset = self.take(size)
        if offset is None:
            return None
        chunk = Chunk(self._start + offset, round_up(size, BLOCK), stream, small=False)
        chunk.requested = size
        self._allocator.count(chunk)
        return chunk

    def leave(self, chunk: Chunk) -> None:
        self._allocator.discount(chunk)
        self.free(chunk.start - self._start)
