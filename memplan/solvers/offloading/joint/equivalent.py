"""Transfers of equivalent tensors, derived once: the same tensors of equal layers, say.

Deriving transfers only compares moments, and adds a slot or two to them: how many runs there are between two
uses does not matter if they are many. So long gaps are shortened, transfers are derived on the short line,
and what is derived there is put back on the long one.

    uses       ──4────────31──────────────98───▶  runs of the state
    shortened  ──4────────12─────────────20───▶    at most _LONG runs apart
    derived        5                    19        each is near a use: 5 is 4 + 1, 19 is 98 − 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.machine import Hierarchy
from ....planner.residency.lifetimes import Lifetime, Use, count_moments
from ....planner.residency.residency import Residency, TensorUse
from ....planner.residency.tensor_transfers import TensorTransfers, derive_transfers
from ....planner.simulator.footprint import Footprint

_LONG = 8
"""Runs that a shortened gap has. What is derived is less than half of that from a use."""

MOST_KEPT = 100_000
"""Contributions that are cached: some hundred MB at most."""


class Part(NamedTuple):
    """The contribution of one tensor to a state, but for its offload intervals.

    moves, fetches, start: see TensorTransfers. places, changes: where the bytes in a memory change, as
    indices into a flat array of all memories' moments, and by how much.
    """

    moves: Any
    fetches: Any
    start: int
    places: Ints
    changes: Ints


class Short(NamedTuple):
    """Lifetimes of a tensor, and their line with shortened gaps.

    at: positions on the short line of its anchors: of uses, first contributions, and the ends of the line.
    moments: those of the anchors on the long line. shape: all that matters of the lifetimes, on the short
    line. runs: of that line.
    """

    lifetimes: Sequence[Lifetime]
    uses: Sequence[int]
    at: Mapping[int, int]
    moments: Ints
    shape: tuple[Any, ...]
    runs: int


class _Moments(NamedTuple):
    """Moments that were derived on a short line: the numbers of their anchors, and how far from these."""

    anchors: Ints
    farther: Ints

    def on(self, line: Ints) -> Ints:
        """Return them on a long line. line: moments of its anchors."""
        return line[self.anchors] + self.farther


class _Derived(NamedTuple):
    """Transfers that were derived on a short line, and their moments.

    moments: of the moves their slots and orders, of the fetches the uses and earliest, and where bytes
    change. memories, changes: there, the memories that they count in as rows of a flat array, and by how
    much.
    """

    transfers: TensorTransfers
    moments: _Moments
    memories: Ints
    changes: Ints


def shorten(lifetimes: Sequence[Lifetime], runs: int) -> Short:
    """Return the lifetimes with long gaps shortened. runs: of the line that they are on."""
    uses = [use.moment >> 1 for lifetime in lifetimes for use in lifetime.uses]
    anchors = sorted({0, runs, *uses, *[lifetime.first_moment >> 1 for lifetime in lifetimes]})
    at, last = {0: 0}, 0
    for before, after in pairwise(anchors):
        # Gaps of _LONG or more need no distinction: what is derived is less than half of that from one of
        # their ends.
        last += min(after - before, _LONG)
        at[after] = last

    def short(moment: int) -> int:
        return 2 * at[moment >> 1] + (moment & 1)

    shape = tuple(
        [
            (
                tuple([(short(moment), memory, changes) for moment, memory, changes in each.uses]),
                short(each.first_moment),
                each.survives,
                each.persistent,
                each.spread,
            )
            for each in lifetimes
        ]
    )
    return Short(
        lifetimes=lifetimes, uses=uses, at=at, moments=2 * np.array(anchors, np.int64), shape=shape, runs=last
    )


class Equivalent:
    """The contributions of tensors, each kind derived once.

    moments: of the states that the parts are for.
    """

    def __init__(self, footprint: Footprint, hierarchy: Hierarchy, moments: int) -> None:
        self._footprint, self._hierarchy, self._moments = footprint, hierarchy, moments
        self._derived: dict[tuple[Any, ...], _Derived] = {}

    def part(self, x: int, short: Short, offloaded: Mapping[TensorUse, int]) -> Part:
        """Return the contribution of a tensor. offloaded: by the uses on the long line."""
        wishes = tuple([offloaded.get((x, position)) for position in short.uses or (-1,)])
        # The key has all that the derivation reads: sizes, the shape of the lifetimes, and what is offloaded.
        key = (self._footprint.sizes[x], short.runs, short.shape, wishes)
        derived = self._derived.get(key)
        if derived is None:
            if len(self._derived) == MOST_KEPT:
                self._derived.clear()
            derived = self._derived[key] = self._derive(x, short, wishes)
        return _lengthened(x, short, derived)

    def part_at(self, x: int, residency: Residency, lifetimes: Sequence[Lifetime]) -> Part:
        """Return the contribution of a tensor, derived on the long line: some of its slots are given."""
        transfers = derive_transfers(self._footprint.sizes, self._hierarchy, residency, lifetimes)
        edges, memories, changes = self._edges(x, transfers)
        places = memories * (self._moments + 1) + edges
        return Part(transfers.moves, transfers.fetches, transfers.start, places, changes)

    def _derive(self, x: int, short: Short, wishes: Sequence[int | None]) -> _Derived:
        lifetimes = [
            _moved(lifetime, shape) for lifetime, shape in zip(short.lifetimes, short.shape, strict=True)
        ]
        uses = [short.at[use] for use in short.uses] or [-1]
        said = {(x, use): to for use, to in zip(uses, wishes, strict=True) if to is not None}
        residency = Residency([(0, 0)] * short.runs, said)  # of the runs only their number counts
        transfers = derive_transfers(self._footprint.sizes, self._hierarchy, residency, lifetimes)
        edges, memories, changes = self._edges(x, transfers)
        moves, fetches = transfers.moves, transfers.fetches
        moments = (2 * moves["slot"], moves["order"], fetches["use"], fetches["earliest"], edges)
        anchored = self._anchored(np.concatenate(moments), short)
        return _Derived(transfers, anchored, memories * (self._moments + 1), changes)

    def _anchored(self, moments: Ints, short: Short) -> _Moments:
        """Return moments of a short line, some of them in the iterations before and after, by its anchors."""
        anchors = np.array(list(short.at.values()), np.int64)
        # A fetch may begin in the iteration before: the moment is then below 0.
        iterations, inside = np.divmod(moments, count_moments(short.runs))
        positions = inside >> 1
        numbers = np.searchsorted(anchors, positions, "right") - 1
        numbers += positions - anchors[numbers] >= _LONG // 2  # nearer to the next
        return _Moments(numbers, inside - 2 * anchors[numbers] + iterations * self._moments)

    def _edges(self, x: int, transfers: TensorTransfers) -> tuple[Ints, Ints, Ints]:
        """Return the moments at which bytes change, the memories that they count in, and the changes."""
        edges = list[tuple[int, int, int]]()
        for memory, spans in enumerate(transfers.spans):
            where, size = self._footprint.of(x, memory)
            edges += [edge for low, high in spans for edge in ((low, where, size), (high, where, -size))]
        moments, memories, changes = np.array(edges, np.int64).reshape(-1, 3).T
        return moments, memories, changes


def _lengthened(x: int, short: Short, derived: _Derived) -> Part:
    """Put what was derived on a short line back on the long one."""
    moves, fetches = derived.transfers.moves, derived.transfers.fetches
    moments, first, second = derived.moments.on(short.moments), len(moves), len(fetches)
    if first:
        moves = moves.copy()
        moves["tensor"] = x
        moves["slot"] = moments[:first] >> 1
        moves["order"] = moments[first : 2 * first]
    if second:
        fetches = fetches.copy()
        fetches["tensor"] = x
        fetches["use"] = moments[2 * first : 2 * first + second]
        fetches["earliest"] = moments[2 * first + second : 2 * (first + second)]
    places = derived.memories + moments[2 * (first + second) :]
    return Part(moves, fetches, derived.transfers.start, places, derived.changes)


def _moved(lifetime: Lifetime, shape: tuple[Any, ...]) -> Lifetime:
    """Return a lifetime with the moments of its shape."""
    uses, first, *_same = shape
    return replace(lifetime, uses=[Use(*use) for use in uses], first_moment=first)
