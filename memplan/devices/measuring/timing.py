"""Seconds of one call, collected in rounds between which other calls are timed.

Other work on the machine only adds time: a thread that waits for its next time slice, or for another thread
that waits for one, takes milliseconds longer, at times in several runs in a row; and caches are another's
after each slice. So a call counts with its fastest run, and that is believed once the fastest run of another
round is very close to it, or those of two others are close:

    round 1    12.0   0.9   1.0    fastest 0.9
    round 2     8.2   9.1          fastest 8.2
    round 3     0.95  4.1          fastest 0.95: not settled
    round 4     1.1   0.92         fastest 0.92: settled at 0.9

Several runs in a row are better than as many rounds: after the first of them caches are the call's own. A
call that is longer than a time slice runs once in a round: it fills the caches by itself, and several runs of
it would take most of the time in which a model is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from math import ceil, inf
from statistics import median
from time import perf_counter

import numpy as np

from ..device.device import Device, StreamDevice, Timed

Call = Callable[[], object]

ROUND_SECONDS = 0.008
"""A round goes on for so long, within its fewest and its most runs."""
FEWEST = 2
MOST = 10
LONG_SECONDS = 0.3
"""A call that takes longer than this, and than others' time slices, runs once in a round."""
PATIENCE = 25
"""A round ends when it took so many times as long as it should."""

AGREE = {2: 0.03, 3: 0.1}
"""By number of rounds, the relative difference up to which the fastest runs of so many agree."""
CLOCK_SECONDS = 2e-6
"""Difference up to which they agree however short the call is."""


class Timing:
    """The runs of one call so far."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._rounds: list[list[Timed]] = []

    def add_round(self, calls: Sequence[Call]) -> None:
        """Time some runs, as many as fit into `ROUND_SECONDS`.

        calls: equal calls on different copies of the inputs, which take turns.
        """
        groups = timed_together(self._device, calls)
        # Infinite before the first run: the fewest runs are made then.
        started, expected = perf_counter(), self.seconds
        taken: list[Timed] = []
        for number, group in enumerate(cycle(groups)):
            late = perf_counter() - started > PATIENCE * ROUND_SECONDS
            if number >= runs(expected * len(group)) or (late and number >= FEWEST):
                break
            taken.append(self._device.timed(group))
            expected = min(expected, taken[-1].seconds)
        self._rounds.append(taken)

    def add_long_run(self, seconds: float) -> bool:
        """Take a run that was timed for another reason as a round, if it is long enough for one.

        Returns whether it is.
        """
        if seconds < LONG_SECONDS or isinstance(self._device, StreamDevice):  # its launch is not known
            return False
        self._rounds.append([Timed(seconds)])
        return True

    @property
    def seconds(self) -> float:
        """Return the time of the fastest run; infinite if there is none."""
        return min((one.seconds for one in self._all), default=inf)

    @property
    def launch(self) -> float:
        """Return the issuing thread's time in the fastest launch, 0 if most runs could not be launched
        ahead: such a call waits for the device.
        """
        launches = [one.launch for one in self._all]
        return min(filter(None, launches)) if median(launches) else 0.0

    @property
    def doubt(self) -> float:
        """Return the share of the fastest run by which it may be off.

        It is 0 if two or three rounds agree (`AGREE`), else that by which the slower of the fastest ones
        was slower; at least 1 after a single round.
        """
        best, *others = sorted(min(one.seconds for one in each) for each in self._rounds)[: max(AGREE)]
        for count, slower in enumerate(others, 2):
            if slower - best <= max(AGREE[count] * best, CLOCK_SECONDS):
                return 0.0
        # A clock of processor time may not move during a short call.
        return (others[-1] - best) / max(best, CLOCK_SECONDS) if others else 1.0

    @property
    def settled(self) -> bool:
        return self.doubt == 0.0

    @property
    def spread(self) -> float:
        """Return the interquartile range of all runs over their median."""
        low, middle, high = np.percentile([one.seconds for one in self._all], [25, 50, 75])
        return float((high - low) / max(middle, CLOCK_SECONDS))

    @property
    def _all(self) -> list[Timed]:
        return [one for each in self._rounds for one in each]


def timed_together(device: Device, calls: Sequence[Call]) -> Sequence[Sequence[Call]]:
    """Split the calls into groups that are timed together.

    A device with streams needs all calls in a row, see `StreamDevice.timed`; otherwise each is timed alone.
    """
    return [calls] if isinstance(device, StreamDevice) else [[call] for call in calls]


def runs(seconds: float) -> int:
    """Return how often to run in a round what takes so many seconds."""
    if LONG_SECONDS <= seconds < inf:
        return 1
    return min(MOST, max(FEWEST, ceil(ROUND_SECONDS / max(seconds, 1e-9))))
