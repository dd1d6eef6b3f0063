"""Extents in one file: each at the lowest offset with enough room (first fit)."""

from __future__ import annotations

from bisect import insort
from collections import deque
from threading import Lock


class Extents:
    """Extents of one file. Threads may share the object.

    end: offset beyond which no extent has ever reached.
    """

    def __init__(self) -> None:
        self.end = 0
        self._holes: list[tuple[int, int]] = []
        self._given_back = deque[tuple[int, int]]()
        self._lock = Lock()

    def take(self, size: int) -> int:
        """Take a new extent of `size` bytes, above 0, and return its offset."""
        with self._lock:
            self._fill_in()
            for place, (start, end) in enumerate(self._holes):
                if end - start >= size:
                    self._holes[place : place + 1] = [(start + size, end)] if end - start > size else []
                    return start
            # A hole at the end is too small, but the file can grow after it.
            start = self._holes.pop()[0] if self._holes and self._holes[-1][1] == self.end else self.end
            self.end = start + size
            return start

    def give_back(self, offset: int, size: int) -> None:
        """Give an extent back.

        The garbage collector may call it at any moment, in the midst of `take` too.
        """
        self._given_back.append((offset, offset + size))  # atomic, and without the lock that `take` may hold

    def _fill_in(self) -> None:
        while self._given_back:
            insort(self._holes, self._given_back.popleft())
        joined: list[tuple[int, int]] = []
        for start, end in self._holes:
            if joined and joined[-1][1] == start:
                start = joined.pop()[0]
            joined.append((start, end))
        self._holes = joined
