"""Rates by repeated timing, and what they say of copies in one direction: of a link, or to or from a disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ...graphs.machine import JointRate, Link

TARGET_SECONDS = 0.5
"""Repetitions go on so long, but for the fewest and the most."""
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
        """Return the interquartile range over the median."""
        return (self.high - self.low) / self.median


class CopyRates(NamedTuple):
    """Rates of copies in one direction. The tuples have a rate per size, growing.

    small: with a few bytes at a time, which take hardly more than their latency; the other direction is idle.
    alone: while the other direction is idle.
    both: while the other direction is busy too.
    pageable: as `both`, from or to host memory that is not pinned; empty if that makes no difference.
    """

    small: Rate
    alone: tuple[Rate, ...]
    both: tuple[Rate, ...]
    pageable: tuple[Rate, ...] = ()

    def link(self, *, shared: bool = False) -> Link:
        """Return the link that plans count with.

        Its rate is that of the largest size while both directions are busy: schedules copy in both all the
        time. If they share something, which the machine's file then says, it is that of this direction alone.
        Its latency is that of this direction alone, too. If there are several sizes, copies of these take
        what they did.
        """
        rates = self.alone if shared else self.both
        pageable = figure(self.pageable[-1]) if self.pageable else None
        least = float(f"{latency(self.small, self.alone[-1]):.3g}")
        return Link(figure(rates[-1]), least, pageable, _measured(least, rates))


IN_TURNS, APART = 1.15, 1.6
"""Work of both directions at once over that of one: up to the first they take turns, from the second on they
share nothing worth telling (on an H200 1.77, on another 1.67: benchmarks/results/gpu.md)."""


class Pair(NamedTuple):
    """Two links, and what they share: groups that take turns, or groups with a rate."""

    links: tuple[Link, Link]
    shared: tuple[tuple[str, ...], ...] = ()
    joint_rates: tuple[JointRate, ...] = ()


def pair_of(names: tuple[str, str], ways: tuple[CopyRates, CopyRates]) -> Pair:
    """Return the links of two directions by what they reached alone and both at once."""
    alone, both = [figure(way.alone[-1]) for way in ways], [figure(way.both[-1]) for way in ways]
    # How much of what it does alone each direction does while the other one is busy.
    work = sum(at_once / one for one, at_once in zip(alone, both, strict=True))
    if work >= APART:
        return Pair((ways[0].link(), ways[1].link()))
    links = (ways[0].link(shared=True), ways[1].link(shared=True))
    if work > IN_TURNS:
        return Pair(links, joint_rates=(JointRate(names, max(*alone, sum(both))),))
    # Less than in turns: both at once disturb each other, as reads and writes of some disks.
    slow = 1 / work if work < 1 else 1.0
    return Pair((links[0].slowed(slow), links[1].slowed(slow)), shared=(names,))


def _measured(least: float, rates: Sequence[Rate]) -> tuple[tuple[int, float], ...]:
    """Return seconds by size for `Link.measured`, which never fall with the size; nothing for one size
    alone.
    """
    seconds = accumulate((float(f"{rate.bytes / rate.median:.3g}") for rate in rates), max, initial=least)
    sizes = (rate.bytes for rate in rates)
    return tuple(zip(sizes, [*seconds][1:], strict=True)) if len(rates) > 1 else ()


def all_rates(one: CopyRates, other: CopyRates) -> list[Rate]:
    """Return the rates of two directions for a table; rates that they share come once."""
    alone, both = (*one.alone, *other.alone), (*one.both, *other.both)
    return list(dict.fromkeys((one.small, other.small, *alone, *both, *one.pageable, *other.pageable)))


def figure(rate: Rate) -> float:
    """Return the median with the three digits that it is good for."""
    return float(f"{rate.median:.3g}")


def repeated(what: str, size: int, seconds_of: Callable[[], float]) -> Rate:
    """Time something repeatedly, after a warm-up.

    seconds_of: does it once, with `size` bytes, and returns the seconds that it took.
    """
    seconds_of()
    taken = [seconds_of()]
    while len(taken) < FEWEST or (len(taken) < MOST and sum(taken) < TARGET_SECONDS):
        taken.append(seconds_of())
    return rate_of(what, size, taken)


def latency(small: Rate, large: Rate) -> float:
    """Return the seconds of a copy of no bytes, on the line through the medians of two sizes; at least 0."""
    seconds = [one.bytes / one.median for one in (small, large)]
    return max(0.0, seconds[0] - small.bytes * (seconds[1] - seconds[0]) / (large.bytes - small.bytes))


def rate_of(what: str, size: int, taken: Sequence[float]) -> Rate:
    """Return the rate of repetitions.

    taken: seconds of each, for `size` bytes.
    """
    low, median, high = np.percentile([size / max(seconds, 1e-9) for seconds in taken], [25, 50, 75])
    return Rate(what, size, float(low), float(median), float(high))
