"""Advice for starts from the fractional offloading program: tensors to drop, updates for the CPU, what stays.

    order of first runs ──▶ fractions of the program ──▶ choices, an order of preference

At the moments that an offload interval spans, the program has some share of its tensor on the device: the
larger that is, the sooner the tensor stays there. A tensor of which less than some share is anywhere between
forward and backward is dropped. Of the updates those of which most is on the CPU go there, as much of them as
the program has there in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Floats
from ....graphs.machine import Machine
from ...bounds.offload.fractions import Fractions, fractions
from .drops import Drops
from .fill import durations
from .parts import OffloadInterval
from .state import State

_SHARES = (0.25, 0.5, 0.75, 0.95)
"""Shares of a tensor: if less than that is anywhere, it is dropped."""

_KEPT_IF_UNKNOWN = 1.5
"""Share of an interval between two moments of the program; above 1, since such an interval is short."""

_DIGITS = 3
"""Digits of shares that count: the others are the solver's noise."""


class LpGuide:
    """The advice of one solution of the program.

    places: positions of the first runs of `drops.runs` among the runs of the states to fill.
    """

    def __init__(self, drops: Drops, advice: Fractions, places: Sequence[int]) -> None:
        self.drops, self._on_cpu = drops, advice.on_cpu
        # Below 0: the iteration's start, which is no operation's.
        known = [s for s, moment in enumerate(advice.moments) if moment >= 0]
        self._moments = np.array([advice.moments[s] for s in known], np.int64)
        self._positions = np.array(places, np.int64)[self._moments]
        self._there, self._below = advice.there[known], advice.below[known]
        self._place = {operation: place for place, (operation, _mode) in enumerate(drops.runs)}

    def preferred(self, state: State, intervals: Sequence[OffloadInterval]) -> list[OffloadInterval]:
        """Sort intervals by the share that the program keeps, the largest first.

        Of equal ones the shortest comes first, then the largest.
        """
        kept, seconds = self._kept(state, intervals), durations(state, intervals)
        sizes = state.graph.tensors.bytes[[interval.tensor for interval in intervals]]
        # The last key sorts first.
        return [intervals[number] for number in np.lexsort((-sizes, seconds, -kept)).tolist()]

    def _kept(self, state: State, intervals: Sequence[OffloadInterval]) -> Floats:
        """Return the share that the program keeps on the device, as the mean over the moments that each
        spans."""
        rows = np.array(intervals, np.int64).reshape(-1, 3)
        after, before, runs = rows[:, 1, None], rows[:, 2, None], len(state.runs)
        # An interval may reach into the next iteration, whose positions are higher by `runs`.
        inside = [(after < at) & (at < before) for at in (self._positions, self._positions + runs)]
        there = self._there[:, rows[:, 0]].T
        return np.round(_mean(there, inside[0] | inside[1], _KEPT_IF_UNKNOWN), _DIGITS)

    def choices(self, updates: Sequence[Sequence[int]]) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
        """Yield pairs: the tensors to drop, and the updates for the CPU. updates: groups that go together."""
        sides = dict.fromkeys((self._for_the_cpu(updates), frozenset[int]()))
        anywhere = self._anywhere()
        for on_cpu in sides:
            for share in _SHARES:
                yield frozenset(x for x, part in anywhere.items() if part < share), on_cpu

    def _anywhere(self) -> dict[int, float]:
        """Return the share of each saved tensor that the program has anywhere while it waits for backward.

        These are the tensors that may be dropped and are needed in the backward part; on the device or
        below.
        """
        drops, parts = self.drops, np.nan_to_num(self._there) + np.nan_to_num(self._below)
        found: dict[int, float] = {}
        for x in drops.saved:
            users = [drops.producers[x], *drops.graph.consumers[x].tolist()]
            forward = max(self._place[o] for o in users if o < drops.boundary)
            backward = min(self._place[o] for o in users if o >= drops.boundary)
            inside = (forward < self._moments) & (self._moments < backward)
            # On the device and below at once adds up to more than 1.
            part = _mean(np.minimum(parts[:, x], 1.0)[None], inside[None], 1.0)[0]
            found[x] = round(float(part), _DIGITS)
        return found

    def _for_the_cpu(self, updates: Sequence[Sequence[int]]) -> frozenset[int]:
        times = self.drops.graph.operations.time
        seconds = [float(sum(times[o] for o in group)) for group in updates]
        # Seconds of device time that the program moves to the CPU.
        moved = [float(sum(self._on_cpu[self._place[o]] * times[o] for o in group)) for group in updates]
        shares = [part / whole if whole else 0.0 for part, whole in zip(moved, seconds, strict=True)]
        left, chosen = sum(moved), set[int]()
        for number in sorted(range(len(updates)), key=lambda number: -shares[number]):
            # The next would overshoot by more than leaving it out falls short.
            if left < seconds[number] / 2:
                break
            chosen.update(updates[number])
            left -= seconds[number]
        return frozenset(chosen)


def guided(
    drops: Drops,
    machine: Machine,
    budget: int,
    places: Sequence[int],
    seconds: float,
    cancelled: Callable[[], bool],
) -> LpGuide | None:
    """Solve the program and return its advice; None without an answer in time. Raises KeyboardInterrupt."""
    order = [operation for operation, _mode in drops.runs]
    advice = fractions(
        drops.graph, order, machine=machine, budget=budget, seconds=seconds, cancelled=cancelled
    )
    return LpGuide(drops, advice, places) if advice else None


def _mean(values: Floats, chosen: NDArray[np.bool_], otherwise: float) -> Floats:
    """Return per row the mean of the chosen values that are numbers; `otherwise` if there is none."""
    chosen = chosen & ~np.isnan(values)
    count = chosen.sum(axis=1)
    total = np.where(chosen, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), otherwise)
