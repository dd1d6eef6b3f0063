"""One block of memory in which each allocation has a planned address, and the allocations that are there
now.

expect((size, offset), …)    what comes next, in order
take(size)                   its offset; None if nothing so large was expected, or the address is in use
free(offset)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

Request = tuple[int, int]
"""Bytes and an offset. (0, 0): of something that has no planned address."""


class PlannedRooms:
    """Allocations at planned addresses in one block.

    address, size: of the memory, in bytes.
    missed: bytes that had a planned address which was still in use.
    """

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size, self.missed = address, size, 0
        self._expected = deque[Request]()
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def expect(self, *requests: Request) -> None:
        """Announce the next allocations; they replace what was expected before."""
        self._expected = deque(requests)

    def take(self, size: int) -> int | None:
        if not self._expected:
            return None
        room, offset = self._expected.popleft()
        # It is used up also if it does not fit: (0, 0) is of something without an address.
        if size > room:
            return None
        at, end = bisect_left(self._starts, offset), offset + room
        # Allocations never overlap, so only the two neighbours can be in the way.
        taken = at < len(self._starts) and self._starts[at] < end
        if taken or (at and self._ends[self._starts[at - 1]] > offset) or end > self.size:
            self.missed += size
            return None
        insort(self._starts, offset)
        self._ends[offset] = end
        return offset

    def free(self, offset: int) -> None:
        self._starts.remove(offset)
        del self._ends[offset]
