"""The demands of a model's operations at every batch, by kinds of operations, from a few batches.

Operations that are equal at both ends of a line of programs (family.py) are equal at every batch on it: they
are one kind. A transformer has thousands of operations and some hundred kinds.

A kind's numbers (FLOPs, bytes, workspace) are mostly straight lines. That is believed if they are on one at
both ends and at the batches `_STEP`, `_STEP`² … times as large, up to one above the batch that is asked for:
the minimum or maximum of two lines, which bends once, is on none. A kind that bends (rows picked from a
table: at most the whole table) is computed at each batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...devices.measuring.synthetic_inputs import signature
from ...graphs.arrays import Ints
from ...program.program import Operation, Program, values_read
from .estimate import Demand, demands_of
from .family import DiffersError, between, combined
from .workspace import Workspace

_STEP = 8


class _Samples(NamedTuple):
    """Demands of all kinds up to a batch: which kinds are lines, and their numbers per batch."""

    straight: NDArray[np.bool_]
    slopes: Ints


class DemandLine:
    """Programs at all batches of a line, and what their operations demand.

    ends: two batches, or one twice: then the line is that batch alone. low, high: the programs there.
    kind: the kind of each operation.
    """

    def __init__(self, ends: tuple[int, int], low: Program, high: Program) -> None:
        self.ends, self.program, self._high = ends, low, high
        kinds, pairs = dict[Hashable, int](), zip(low.operations, high.operations, strict=True)
        keys = [
            (signature(low, one.call), None if low is high else signature(high, other.call))
            for one, other in pairs
        ]
        self.kind = np.array([kinds.setdefault(key, len(kinds)) for key in keys], np.int64)
        self._examples: list[int] = np.unique(self.kind, return_index=True)[1].tolist()
        self._bytes = [np.array([x.bytes for x in one.storages], np.int64) for one in (low, high)]
        self._every = range(len(self._examples))
        self._at_low = self._computed(ends[0], self._every)
        self._numbers = _numbers(self._at_low)
        self._samples, self._known = dict[int, _Samples](), {ends[0]: self._at_low}

    def bytes(self, batch: int) -> Ints:
        """Return the bytes of each storage."""
        (first, last), (low, high) = self.ends, self._bytes
        return low if first == last else low + (high - low) * (batch - first) // (last - first)

    def demands(self, batch: int) -> list[Demand]:
        """Return the demand of each kind."""
        if batch not in self._known:
            straight, slopes = self._up_to(batch)
            numbers = (self._numbers + slopes * (batch - self.ends[0])).tolist()
            bent = [kind for kind in self._every if not straight[kind]]
            found = [_with(one, row) for one, row in zip(self._at_low, numbers, strict=True)]
            for kind, one in zip(bent, self._computed(batch, bent), strict=True):
                found[kind] = one
            self._known[batch] = found
        return self._known[batch]

    def _up_to(self, batch: int) -> _Samples:
        first, last = self.ends
        top = _STEP * last
        if last not in self._samples:
            at_last = _numbers(self._computed(last, self._every))
            # All are whole numbers: with a remainder they are on no line.
            slopes, rest = np.divmod(at_last - self._numbers, last - first)
            self._samples[last] = _Samples((rest == 0).all(axis=1), slopes)
        while True:
            if top not in self._samples:
                self._samples[top] = self._compared(self._samples[top // _STEP], top)
            if batch < top:
                return self._samples[top]
            top *= _STEP

    def _compared(self, known: _Samples, top: int) -> _Samples:
        """Return the samples of which those are straight that are so at one more batch."""
        places: list[int] = np.flatnonzero(known.straight).tolist()
        straight = np.zeros_like(known.straight)
        try:
            found = self._computed(top, places)
        except DiffersError:  # this batch has no whole numbers: nothing is known of it
            return _Samples(straight, known.slopes)
        there = (self._numbers + known.slopes * (top - self.ends[0]))[places]
        same = [_words(one) == _words(self._at_low[place]) for one, place in zip(found, places, strict=True)]
        straight[places] = (there == _numbers(found)).all(axis=1) & np.array(same, np.bool_)
        return _Samples(straight, known.slopes)

    def _computed(self, batch: int, kinds: Sequence[int]) -> list[Demand]:
        """Compute the demands of some kinds from the calls of an operation of each."""
        examples = [self._examples[kind] for kind in kinds]
        low, high = (_with_operations(one, examples) for one in (self.program, self._high))
        if batch == self.ends[0]:
            return demands_of(low)
        used = {value for one in low.operations for value in _values(one)}
        places = [value for value in used if low.values[value] != high.values[value]]
        return demands_of(combined(low, high, between(*self.ends, batch), places))


def _with_operations(program: Program, places: Sequence[int]) -> Program:
    return replace(program, operations=[program.operations[place] for place in places])


def _values(operation: Operation) -> list[int]:
    """Return the values that a call reads and makes."""
    made = (output for output in operation.call.outputs if output is not None)
    return [*values_read(operation.call), *made]


def _numbers(demands: Sequence[Demand]) -> Ints:
    """Return the numbers of demands, a row for each."""
    rows = [
        (one.work.flops, one.work.bytes, one.work.scores, one.workspace.usual, one.workspace.most, one.size)
        for one in demands
    ]
    return np.array(rows, np.int64).reshape(-1, 6)


def _words(demand: Demand) -> tuple[object, ...]:
    """Return what is no number of a demand, or one that is the same at every batch."""
    work = demand.work
    return work.rate, work.kind, work.keys, demand.passes, demand.fused


def _with(demand: Demand, numbers: Sequence[int]) -> Demand:
    flops, moved, scores, usual, most, size = numbers
    work = demand.work._replace(flops=flops, bytes=moved, scores=scores)
    return Demand(work, Workspace(usual, most), demand.passes, size, demand.fused)
