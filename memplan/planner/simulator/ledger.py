"""The bytes of one memory, counted in list order: what is there, what is about to leave."""

from __future__ import annotations

from collections import deque
from math import inf

Entry = tuple[int, tuple[int, ...]]
"""Bytes, and the transfers that hold them."""


class Ledger:
    """The account of one memory's bytes.

    used: bytes counted now, pending deletes included. settled: the same if every delete were immediate.
    pending: deletes that still wait for transfers of their copy, oldest first.
    rests: bytes of awaited deletes that the allocations did not take: not counted any more, but an allocation
    that takes them waits for the same transfers.
    peak, least: the largest `used` and `settled` so far, with the running step's transient bytes.
    """

    __slots__ = ("least", "limit", "peak", "pending", "rests", "settled", "used")

    def __init__(self, limit: int | None) -> None:
        self.limit = inf if limit is None else limit
        self.used = self.settled = self.peak = self.least = 0
        self.pending: deque[Entry] = deque()
        self.rests: deque[Entry] = deque()

    def fits(self, size: int) -> bool:
        return self.settled + size <= self.limit

    def claim(self, kept: int, transient: int) -> list[int]:
        """Allocate `kept` bytes to stay and `transient` for the running step; the transfers to wait for.

        Only if `fits(kept + transient)`.
        """
        waits: list[int] = []
        # Rests are memory that only allocations which wait may take, so they count as taken here.
        missing = self.used + sum(size for size, _ in self.rests) + kept + transient - self.limit
        # Ends: `fits` has checked that with all pending deletes done there is room.
        while missing > 0:
            if self.rests:
                size, transfers = self.rests.popleft()
            else:
                size, transfers = self.pending.popleft()
                self.used -= size
            if size > missing:
                # The rest of this delete is not counted any more, but an allocation that takes it waits for
                # it too.
                self.rests.appendleft((int(size - missing), transfers))
            missing -= size
            waits.extend(transfers)
        self.used += kept
        self.settled += kept
        self.peak = max(self.peak, self.used + transient)
        self.least = max(self.least, self.settled + transient)
        return waits

    def free(self, size: int, transfers: tuple[int, ...] = ()) -> None:
        """Delete `size` bytes, at once or, if `transfers` are in flight, when they have ended."""
        self.settled -= size
        if transfers and size:
            self.pending.append((size, transfers))
        else:
            self.used -= size

    def settle_before(self, step: int) -> None:
        """End the pending deletes that wait only for transfers before `step`."""
        left = deque(entry for entry in self.pending if max(entry[1]) >= step)
        self.used -= sum(size for size, _ in self.pending) - sum(size for size, _ in left)
        self.pending = left
        self.rests = deque(entry for entry in self.rests if max(entry[1]) >= step)

    def next_iteration(self, steps: int) -> list[Entry]:
        """Count the transfers that are waited for from the next iteration's start; a snapshot."""
        self.pending, self.rests = (
            deque((size, tuple(step - steps for step in transfers)) for size, transfers in entries)
            for entries in (self.pending, self.rests)
        )
        return [*self.pending, *self.rests]
