"""Greedy choice of the tensors that stay on the device: those that save most link time for their memory.

All are offloaded first, which needs the least memory. Then offload intervals are removed, in some order of
preference, wherever the memory has room. An interval costs the same transfers however long it is: the short
ones, and those around the peak, are the first to avoid (Belady's rule). If the link limits the period, whole
persistent tensors are better kept, which also saves their way down, and evenly spread over the iteration:
between those that move, there is then work for the others to come in. No simulation is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled
from .parts import INTERVAL, OffloadInterval
from .state import State


def ends_of(state: State, intervals: Any) -> tuple[Ints, Ints]:
    """Return the moments from … to (excluded) at which each tensor would be resident if it stayed.

    They go beyond the iteration for a tensor that stays across its end. intervals: rows (tensor, after,
    before).
    """
    before, runs = intervals["before"], len(state.runs)
    # Moment 2 k is the slot before run k, 2 k + 1 the run: from the slot after a use to that of the fetch.
    return 2 * intervals["after"] + 2, 2 * before + (before >= runs) * (state.moments - 2 * runs)


def send_all(state: State, chosen: Iterable[OffloadInterval]) -> None:
    state.send([interval.place for interval in chosen])


def fill(state: State, chosen: Iterable[OffloadInterval], cap: float, curve: Ints) -> None:
    """Keep tensors on the device while memory stays below `cap`.

    chosen: offload intervals, by preference. curve: device bytes by moment while all of them are offloaded.
    """
    listed = list(dict.fromkeys(chosen))
    rows = np.array(listed, INTERVAL)
    starts, ends = ends_of(state, rows)
    kept = np.zeros(len(listed), np.bool_)
    _fit(starts, ends, state.graph.tensors.bytes[rows["tensor"]], curve.copy(), cap, kept)
    state.keep([listed[number].place for number in np.flatnonzero(kept)])


@compiled
def _fit(starts: Ints, ends: Ints, sizes: Ints, curve: Ints, cap: float, kept: NDArray[np.bool_]) -> None:
    """Keep the tensors that fit, first come, first served.

    starts, ends, sizes: per interval the moments that it spans, and bytes. cap: bytes.
    curve: bytes per moment; changed. kept: set for the intervals whose tensor stays.
    """
    moments = len(curve)
    for number in range(len(starts)):
        # An interval may go beyond the iteration's end: its moments there are those of the next iteration.
        fits = True
        for moment in range(starts[number], ends[number]):
            if curve[moment % moments] + sizes[number] > cap:
                fits = False
                break
        if fits:
            kept[number] = True
            for moment in range(starts[number], ends[number]):
                curve[moment % moments] += sizes[number]


def shortest_first(state: State, chosen: Sequence[OffloadInterval]) -> list[OffloadInterval]:
    """Sort intervals by the seconds of computation that they span, then by size."""
    seconds = durations(state, chosen)
    sizes = state.graph.tensors.bytes
    keys = [
        (second, -int(sizes[interval.tensor]), interval)
        for second, interval in zip(seconds, chosen, strict=True)
    ]
    return [interval for _second, _size, interval in sorted(keys)]


def orders(state: State, chosen: Sequence[OffloadInterval]) -> Iterator[list[OffloadInterval]]:
    """Yield orders of preference for intervals.

    The shortest first; whole persistent tensors, evenly spread, last or first.
    """
    shortest = shortest_first(state, chosen)
    yield shortest
    passing = [interval for interval in shortest if not state.cyclic[interval.tensor]]
    by_tensor: dict[int, list[OffloadInterval]] = {}
    for interval in sorted(chosen, key=lambda interval: interval.after):
        if state.cyclic[interval.tensor]:
            by_tensor.setdefault(interval.tensor, []).append(interval)
    whole = [interval for tensor in _spread(list(by_tensor)) for interval in by_tensor[tensor]]
    if whole:
        # `shortest` at the end has all of them: those listed before count once (`fill`).
        yield [*passing, *whole, *shortest]
        yield [*whole, *passing, *shortest]


def _spread(items: Sequence[int]) -> list[int]:
    """Return an order in which every beginning of the list is spread evenly (van der Corput's sequence)."""
    bits = max(1, (len(items) - 1).bit_length())
    reversed_bits = [int(f"{index:0{bits}b}"[::-1], 2) for index in range(1 << bits)]
    return [items[index] for index in reversed_bits if index < len(items)]


def durations(state: State, chosen: Sequence[OffloadInterval]) -> NDArray[np.float64]:
    """Return the seconds on the compute queue between the uses at both ends of each interval."""
    runs, period = len(state.runs), float(state.starts[-1])
    after = np.array([interval.after for interval in chosen], np.int64)
    before = np.array([interval.before for interval in chosen], np.int64)
    # Positions from `runs` on are of the next iteration, one period later.
    iterations = before // runs if runs else before
    seconds = state.starts[before % runs] + iterations * period - state.starts[after + 1]
    return seconds.astype(np.float64)
