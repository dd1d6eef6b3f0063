"""What a trace has, whatever its format. Times are whole nanoseconds from 0, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Slice(NamedTuple):
    """Something that takes a while. Of one track none begins before the one before it has ended.

    details: what is shown of it. leads, follows: numbers of the arrows that begin and end here, each with one
    beginning and one end in the trace.
    """

    name: str
    start: int
    end: int
    details: Mapping[str, str | int | float]
    leads: Sequence[int] = ()
    follows: Sequence[int] = ()


class Counter(NamedTuple):
    """at: when it takes each of `bytes`, in order; of values of one time the last stays."""

    name: str
    at: Sequence[int]
    bytes: Sequence[int]


class Group(NamedTuple):
    """tracks: by name."""

    name: str
    tracks: Mapping[str, Sequence[Slice]]
    counters: Sequence[Counter]


Trace = Sequence[Group]
