"""The choices of POFO's program: segments of a chain, and the state after each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
"""Seconds by K and Q, both in slots."""


class Input(IntEnum):
    """The place in which a segment's input is counted."""

    FREE = 0
    KEPT = 1
    SENT = 2


@dataclass(frozen=True)
class Segment:
    """A segment: blocks first … end-1. saved: (a). sent: what it keeps is offloaded. memory: slots for
    Rotor's program in (b) and in the last segment."""

    first: int
    end: int
    saved: bool
    sent: bool
    memory: int


@dataclass(frozen=True, eq=False)
class Choice:
    """One way to run a segment.

    seconds: of the segment, by the slots that K and Q leave free. kept, backlog: what is added to K and Q.
    served: of the backlog while it runs. after: the state of block `end`'s input.
    extra: slots in addition to K and Q while the segment's backward runs.
    """

    seconds: Values
    end: int
    saved: bool
    sent: bool
    kept: int
    backlog: int
    served: int
    after: Input
    extra: int

    def backlog_after(self, before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the backlog after the segment.

        A saved block's data is ready at its end, an input at its start.
        """
        if self.saved:
            return np.maximum(0, before - self.served) + self.backlog
        return np.maximum(0, before + self.backlog - self.served)
