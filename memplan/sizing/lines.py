"""The device bytes of a loop at every batch, from few that were replayed.

The programs of a model at all batches of a family have sizes on straight lines (profiling/profile/family.py).
The bytes of a fixed schedule at each of its steps are sums of such sizes, and the peak is the maximum of
them: a convex function of the batch. If such a function meets a chord at a batch within it, it is that chord.

    replayed     2 . . . . . . 32 . . . . . . 64      three on a line: 3 to 63 cost no replay
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container
from dataclasses import dataclass, field


@dataclass
class ConvexBytes:
    """Bytes by batch.

    from_batch: the smallest batch whose program is on a line; None as long as there is no line.
    """

    from_batch: int | None = None
    _replayed: dict[int, float] = field(default_factory=dict[int, float])

    def add(self, batch: int, found: float) -> None:
        self._replayed[batch] = found

    def follow(self, from_batch: int | None, traced: Container[int]) -> None:
        """Take the line that programs are on by now. traced: batches whose bytes hold in any case."""
        if self.from_batch not in (None, from_batch):  # given up: its programs were wrong
            self._replayed = {batch: found for batch, found in self._replayed.items() if batch in traced}
        self.from_batch = from_batch

    def at(self, batch: int) -> float | None:
        """Return the bytes at a batch, replayed or on a chord; None if it has to be replayed."""
        if batch in self._replayed:
            return self._replayed[batch]
        if self.from_batch is None:
            return None
        there = sorted(one for one in self._replayed if one >= self.from_batch)
        place = bisect_left(there, batch)
        if place in (0, len(there)):
            return None
        low, high = there[place - 1], there[place]
        below, above = there[max(place - 2, 0)], there[min(place + 1, len(there) - 1)]
        if not (self._on_chord(below, low, high) or self._on_chord(low, high, above)):
            return None
        return self._between(low, high, batch)

    def _on_chord(self, low: int, middle: int, high: int) -> bool:
        return low < middle < high and self._between(low, high, middle) == self._replayed[middle]

    def _between(self, low: int, high: int, batch: int) -> float:
        one, other = self._replayed[low], self._replayed[high]
        return one + (other - one) * (batch - low) / (high - low)
