"""Rates by repeated timing, after a warm-up: as often as the target allows, between fewest and most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

TARGET_SECONDS = 0.5
FEWEST = 5
MOST = 50


class Rate(NamedTuple):
    """Bytes per second: the quartiles of what `what` reached with `bytes` at a time."""

    what: str
    bytes: int
    low: float
    median: float
    high: float

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        return (self.high - self.low) / self.median


def repeated(what: str, size: int, seconds_of: Callable[[], float]) -> Rate:
    """seconds_of: does it once, with `size` bytes, and tells how long that took."""
    seconds_of()
    taken = [seconds_of()]
    while len(taken) < FEWEST or (len(taken) < MOST and sum(taken) < TARGET_SECONDS):
        taken.append(seconds_of())
    return rate_of(what, size, taken)


def latency(small: Rate, large: Rate) -> float:
    """Seconds of a copy of no bytes, on the line through the medians of two sizes; not below 0."""
    seconds = [one.bytes / one.median for one in (small, large)]
    return max(0.0, seconds[0] - small.bytes * (seconds[1] - seconds[0]) / (large.bytes - small.bytes))


def rate_of(what: str, size: int, taken: Sequence[float]) -> Rate:
    """taken: seconds for `size` bytes, time by time."""
    low, median, high = np.percentile([size / max(seconds, 1e-9) for seconds in taken], [25, 50, 75])
    return Rate(what, size, float(low), float(median), float(high))
