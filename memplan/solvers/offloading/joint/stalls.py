"""The device's waits, and the offload intervals that may cause them: those with a transfer not long before.

A run waits for what is fetched for it, for all that is fetched before that, or for the room that a copy down
leaves; so the nearer in runs a transfer is, the likelier is its interval drawn. Waits are computed
anew every so often: a search changes them slowly.
"""

from __future__ import annotations

from bisect import bisect_right
from random import Random

import numpy as np

from .parts import OffloadInterval
from .state import State, StateFigures

_OFTEN = 25
"""Draws that are made before the waits are computed anew."""

_COMES = 0.7
"""Probability of a search among tensors that come back, not those that leave."""

_TRIES = 8
"""Number of these that are tried until one is offloaded."""

_NEAREST = 2
"""Runs before a wait that are searched, at least."""


class Stalls:
    """Offload intervals near the device's waits.

    state: at each call, the one that the outcome belongs to.
    """

    def __init__(self, state: State, random: Random) -> None:
        self.state, self.random = state, random
        self._sums, self._left = list[float](), 0

    def interval(self, outcome: StateFigures) -> OffloadInterval | None:
        """Return the interval of an offloaded tensor that leaves or returns before some wait of this outcome,
        if any."""
        state, runs = self.state, len(self.state.runs)
        if not self._left:
            # Cumulative: a run is drawn with a probability in proportion to its wait.
            self._sums, self._left = np.cumsum(state.waits(outcome)).tolist(), _OFTEN
        self._left -= 1
        if not self._sums or self._sums[-1] <= 0:
            return None
        position = bisect_right(self._sums, self.random.random() * self._sums[-1])
        rows = state.interval_rows
        # From _NEAREST to all runs, every length as likely on a logarithmic scale.
        reach = min(runs, int(_NEAREST * (runs / _NEAREST) ** self.random.random()))
        side = rows["before"] if self.random.random() < _COMES else rows["after"] + 1
        near = np.flatnonzero((position - side) % runs < reach)
        for number in self.random.sample(near.tolist(), min(len(near), _TRIES)):
            found = OffloadInterval(*rows[number].item())
            if found.place in state.offloaded:
                return found
        return None
