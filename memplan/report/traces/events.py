"""Content of a trace, whatever its format. Times are whole nanoseconds from 0, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Slice(NamedTuple):
    """An interval on a track. Slices of one track do not overlap.

    details: values shown with it.
    leads, follows: numbers of the arrows that begin and end here; each arrow has one beginning and one end.
    """

    name: str
    start: int
    end: int
    details: Mapping[str, str | int | float]
    leads: Sequence[int] = ()
    follows: Sequence[int] = ()


class Counter(NamedTuple):
    """A value over time.

    at: when it takes each of `bytes`, ascending; of several at one time the last holds.
    """

    name: str
    at: Sequence[int]
    bytes: Sequence[int]


class Group(NamedTuple):
    """A process of the trace. tracks: slices by the track's name."""

    name: str
    tracks: Mapping[str, Sequence[Slice]]
    counters: Sequence[Counter]


Trace = Sequence[Group]
