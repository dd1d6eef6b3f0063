"""An iteration cut at chosen moments, and what may run for the first time between one and the next.

A *mark* is 2 o, the start of operation o's first run, or 2 o + 1, its end; −1, the end of what came before
the first, is the start of the iteration. Marks follow each other in every order considered. What runs neither
surely before nor surely after a mark has several windows to run in for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from ..residency.order import AFTER, BEFORE, Moment, Order

START = -1
"""The mark of the iteration's start."""


class Windows:
    """Windows between moments: window s goes from moment s to the next, the last to the end of the iteration.

    at: per moment, its operation, below 0 for the iteration's start.
    sides: per moment, what has run for the first time (residency/order.py).
    exact: windows from an operation's start to its end, in which nothing else runs.
    of: per operation, the windows in which its first run may begin; one, if that is known.
    """

    def __init__(self, order: Order, marks: Sequence[int], operations: int) -> None:
        self.marks, self.order = marks, order
        self.at = [mark // 2 for mark in marks]
        # An even mark and the next number: one operation's start and its own end.
        self.exact = {s for s, (a, b) in enumerate(pairwise(marks)) if a % 2 == 0 and b == a + 1}
        self.sides = [_side(order, mark, operations) for mark in marks]
        sides = np.array([np.frombuffer(side, np.uint8) for side in self.sides])
        # Moments before which it surely hasn't run come first, so their number says where it may begin.
        first: list[int] = np.maximum((sides == AFTER).sum(axis=0) - 1, 0).tolist()
        last: list[int] = (len(marks) - 1 - (sides == BEFORE).sum(axis=0)).tolist()
        self.of = [
            # In an exact window only its own operation starts.
            [s for s in range(a, b + 1) if s not in self.exact or self.at[s] == operation]
            for operation, (a, b) in enumerate(zip(first, last, strict=True))
        ]

    def __len__(self) -> int:
        return len(self.marks)

    @cached_property
    def firsts(self) -> list[list[int]]:
        """Operations, per window, that may run there for the first time."""
        found: list[list[int]] = [[] for _ in self.marks]
        for operation, windows in enumerate(self.of):
            for s in windows:
                found[s].append(operation)
        return found

    def moment(self, s: int) -> Moment:
        return Moment(self.at[s], self.sides[s])

    def known(self, operation: int) -> bool:
        return len(self.of[operation]) == 1

    def started(self, s: int) -> list[int]:
        """Return the operations that may have run before moment s."""
        return [o for o, side in enumerate(self.sides[s]) if side != AFTER]


def _side(order: Order, mark: int, operations: int) -> bytes:
    if mark < 0:
        return bytes((AFTER,)) * operations
    side = bytearray(order(mark // 2).side)
    # At its start an operation has not run yet.
    if mark % 2 == 0:
        side[mark // 2] = AFTER
    return bytes(side)
