"""Samples of many lengths: what PyTorch's caching allocator reserves for them, and an iteration's mean time.

Each batch is padded to its longest sample, so batches differ in the bytes of their tensors. The allocator
keeps blocks of all these sizes, and what is left of one is often too small for the next: it reserves up to
twice what the longest batch needs. Its rules (planner/addresses/caching_allocator.py) are played through
BATCHES batches, drawn with a fixed seed, of which the last is the longest.

From length to length a graph differs in numbers alone. Three lengths are traced, and a parabola through them
has the bytes of each tensor, those of scores of attention too, and the seconds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple

import numpy as np

from ..graphs.arrays import Ints
from ..graphs.errors import InputError
from ..graphs.files.documents import read_bytes
from ..graphs.graph import Graph
from ..planner.addresses.caching_allocator import (
    BLOCK,
    CachingAllocator,
    ExpandableSegments,
    NoRoomError,
    serve,
)
from ..planner.addresses.lifetimes import Lifetimes, arcs_without_transfers
from ..planner.baseline import baseline_schedule
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.simulate import figures_of
from .accumulation import earlier_seconds
from .alternatives import GRADIENT_CHECKPOINTING
from .at_once import AS_IT_IS, checkpointed
from .estimate_range import loop_high_end
from .loops import NO_LINKS, Loops
from .question import Room

BATCHES = 128
"""Batches that are played."""
_WHOLE = 8
"""Number of tokens of which traced lengths are a multiple: some kernels take blocks of them."""
_LEAST = 8
"""The longest length is at most so many times the shortest one that is traced."""
_MOST_BYTES = 2**28
_MOST_TOKENS = 2**24


@dataclass(frozen=True)
class Lengths:
    """Tokens of samples, each as likely as the others: a range, or those of a user's data."""

    tokens: Sequence[int]

    @property
    def longest(self) -> int:
        return max(self.tokens)

    @property
    def words(self) -> str:
        return f"samples of {min(self.tokens):,} to {self.longest:,} tokens"

    def cut(self, most: int) -> Lengths:
        """Return the lengths of samples that are cut to so many tokens."""
        return Lengths([min(one, most) for one in self.tokens])

    def padded(self, batch: int) -> list[int]:
        """Return the tokens to which batches are padded, BATCHES times; the last has the longest sample."""
        draw = Random(0)
        drawn = [max(draw.choices(self.tokens, k=batch)) for _ in range(BATCHES - 1)]
        return [*drawn, self.longest]


def parse_lengths(text: str) -> Lengths:
    """Parse '64-2048', '64,512,2048', or the path of a file with a number of tokens on each line.

    Raises InputError, one line.
    """
    if ends := re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", text):
        first, last = (_tokens(word, f"{text!r}") for word in ends.groups())
        if first > last:
            raise InputError(f"{text!r}: {first:,} tokens are more than {last:,}: give {last}-{first}")
        return Lengths(range(first, last + 1))
    if re.fullmatch(r"[\d\s,]*\d[\d\s,]*", text):
        return Lengths([_tokens(word.strip(), f"{text!r}") for word in text.split(",")])
    path = Path(text)
    if not text.strip() or not path.exists():  # '' would be the current folder
        raise InputError(
            f"{text!r} is no range of tokens like 64-2048, no list like 64,512,2048, and no file with a "
            "number of tokens on each line"
        )
    lines = read_bytes(path, _MOST_BYTES).decode(errors="replace").splitlines()
    found = [_tokens(line.strip(), f"{path}: line {at}") for at, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise InputError(f"{path}: is empty: give a file with a number of tokens on each line")
    return Lengths(found)


def _tokens(word: str, where: str) -> int:
    # [:20]: int() takes 4,300 digits, and so many are too large as well.
    if not word.isdecimal() or not 0 < int(word[:20]) <= _MOST_TOKENS:
        short = word if len(word) <= 40 else f"{word[:40]}…"
        raise InputError(f"{where}: {short!r} is not a number of tokens, from 1 to {_MOST_TOKENS:,}")
    return int(word)


class WayByLength(NamedTuple):
    """Figures of a way to train without a plan.

    allocated: the most bytes of tensors, those of the longest batch. reserved: bytes of the allocator's
    segments after all batches; fits: whether the GPU has room for them, with free segments returned
    `retries` times; if not, they are those of a GPU with room for all. expandable: with expandable segments.
    high: the high end of what it takes. seconds, samples_per_second: of updates, on average.
    longest_seconds: of one of the longest batches.
    """

    name: str
    allocated: int
    reserved: int
    fits: bool
    retries: int
    expandable: int
    high: int
    seconds: float
    longest_seconds: float
    samples_per_second: float


class ManyLengths(NamedTuple):
    """The ways to train with batches of many lengths.

    samples: their lengths, in words. batch: samples of one. batches: how many are played.
    tokens: to which a batch is padded, on average.
    """

    samples: str
    batch: int
    batches: int
    tokens: float
    ways: tuple[WayByLength, ...]


class ByLength:
    """Lifetimes and seconds of one schedule of a model's graphs at any length.

    graphs: by length, of the same operations. Raises InputError, one line, if they are not.
    """

    def __init__(self, graphs: Mapping[int, Graph], schedule: Schedule) -> None:
        self._lengths, found = sorted(graphs, reverse=True), [graphs[one] for one in sorted(graphs)[::-1]]
        for length, graph in zip(self._lengths, found, strict=True):
            if not all(map(np.array_equal, _structure(graph), _structure(found[0]))):
                raise InputError(
                    f"--lengths: with {length:,} tokens the model runs other operations than with "
                    f"{self._lengths[0]:,}, so what it takes between them is unknown: omit --lengths"
                )
        self._schedule, self._arcs = schedule, arcs_without_transfers(found[0], schedule)
        self._sizes = np.array([graph.tensors.bytes for graph in found], np.float64)
        self._workspaces = np.array([graph.operations.workspace for graph in found], np.float64)
        self._seconds = [self._time(graph) for graph in found]
        self.lifetimes = cache(self._lifetimes)

    def seconds(self, length: int) -> float:
        """Return the seconds of an update."""
        return float(self._shares(length) @ self._seconds)

    def peak(self, graph: Graph) -> int:
        """Return the bytes that are there at most in one of the graphs."""
        return self._arcs.peak(graph.tensors.bytes, graph.operations.workspace)

    def reserved(self, padded: Sequence[int], allocator: CachingAllocator) -> int:
        """Return the bytes of an allocator's segments after batches of these lengths. Raises NoRoomError."""
        serve(allocator, map(self.lifetimes, padded))
        return allocator.reserved_peak

    def _lifetimes(self, length: int) -> Lifetimes:
        """Return the lifetimes at a length."""

        def whole(values: np.ndarray) -> Ints:
            blocks = np.rint(self._shares(length) @ values / BLOCK).astype(np.int64)
            return np.maximum(blocks, 0) * BLOCK

        return self._arcs.lifetimes(whole(self._sizes), whole(self._workspaces))

    def _shares(self, length: int) -> np.ndarray:
        """Return the share of each traced length in the polynomial's value at this one (Lagrange)."""
        known = self._lengths
        return np.array(
            [prod((length - other) / (one - other) for other in known if other != one) for one in known]
        )

    def _time(self, graph: Graph) -> float:
        last = figures_of(graph, self._schedule, machine=NO_LINKS).time
        return last + earlier_seconds(graph, self._schedule, None, NO_LINKS)


def _structure(graph: Graph) -> list[np.ndarray]:
    """Return all of a graph but names and numbers; names count the calls in another order."""
    columns = graph.operations
    rows = (columns.reads, columns.writes, columns.mutates)
    return [
        graph.tensors.kind,
        columns.phase,
        *(row.start for row in rows),
        *(row.columns for row in rows),
    ]


def traced_lengths(padded: Sequence[int]) -> list[int]:
    """Return the lengths to trace, the longest first: one, two or three."""
    longest = max(padded)
    low = max(min(padded), longest // _LEAST)
    others = [one // _WHOLE * _WHOLE or one for one in ((low + longest) // 2, low) if one < longest]
    return sorted({longest, *others}, reverse=True)


def many_lengths(loops: Loops, lengths: Lengths, batch: int, room: Room) -> ManyLengths:
    """Return what batches of many lengths take without a plan, on a GPU with this room.

    Raises InputError, one line, if the model runs other operations at other lengths.
    """
    padded = lengths.padded(batch)
    longest = loops.ordinary(batch)
    others = (one for one in traced_lengths(padded) if one != lengths.longest)
    worst = {lengths.longest: longest.worst}
    worst |= {one: loops.at_length(one).ordinary(batch).worst for one in others}
    schedules = {
        AS_IT_IS: baseline_schedule(longest.graph),
        GRADIENT_CHECKPOINTING: checkpointed(longest.graph),
    }
    ways = list[WayByLength]()
    for name, schedule in schedules.items():
        if schedule is not None:
            way = ByLength(worst, schedule)
            allocator, fits = CachingAllocator(room.unplanned), True
            try:
                reserved = way.reserved(padded, allocator)
            except NoRoomError:
                reserved, fits = way.reserved(padded, CachingAllocator(sys.maxsize)), False
            expandable = way.reserved(padded, ExpandableSegments())
            most, retried = expandable if loops.expandable else reserved, fits and allocator.retries > 0
            if retried and not loops.expandable:
                # The GPU is full, which ends no training: one length would take less.
                most = way.reserved(padded[-1:] * 2, CachingAllocator(sys.maxsize))
            high = loop_high_end(max(way.peak(longest.worst), most))
            seconds = fmean(map(way.seconds, padded))
            ways.append(
                WayByLength(
                    name,
                    allocated=way.peak(longest.graph) + 2 * room.constant,
                    reserved=reserved + 2 * room.constant,
                    fits=fits,
                    retries=allocator.retries if fits else 0,
                    expandable=expandable + 2 * room.constant,
                    high=max(high, room.unplanned if retried else 0) + 2 * room.constant,
                    seconds=seconds,
                    longest_seconds=way.seconds(lengths.longest),
                    samples_per_second=loops.steps(batch) * batch / seconds,
                )
            )
    return ManyLengths(lengths.words, batch, len(padded), fmean(padded), tuple(ways))
