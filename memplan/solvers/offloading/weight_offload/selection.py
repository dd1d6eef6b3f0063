"""Greedy choice of offload intervals by profit for each byte moved (Algorithm 1).

Every operation has an excess, the bytes above the limit if every weight were there. An interval's profit is
the
excess that it takes from the operations it covers, for each byte that it moves: 2 |w|, or |w| alone if
another interval of the same version is chosen already (the discounted communication: one copy to the host
serves both) or if the weight is frozen. The most profitable is chosen until no excess is left.

O(intervals · (operations + intervals)) for each of the sizes that occur; sizes are put into `_SIZES` classes.

Where this differs from the paper, and why:

- the printed E_o counts the operation's own weight twice (M_o of eq. (1) has it already). Counted once,
  nothing is left for a transfer under way; what is counted more is room for some. `spare`: how often more.
- an interval whose runs take less time than its two copies, 2 |w| / β, exposes them: it is taken only if
  the others do not suffice (`patient`). So is one of a weight that latencies make too expensive (links.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...links import worth_moving
from ..cycles.cycle import FROZEN, Cycle

_SIZES = 16


@dataclass(frozen=True)
class SelectionRule:
    """A variant of the selection.

    spare: room for transfers, in weights of the run's own size. patient: intervals too short for their copies
    come last. discount: a second interval of a version costs half.
    """

    spare: float = 1.0
    patient: bool = True
    discount: bool = True


@dataclass(frozen=True, eq=False)
class _Operations:
    """Operations of the cycle: neighbouring runs that use the same weights are one (B_i is several runs)."""

    of_run: NDArray[np.int64]
    excess: NDArray[np.float64]


def chosen_intervals(cycle: Cycle, variant: SelectionRule) -> list[int] | None:
    """Choose intervals by profit, as numbers in `cycle.intervals`; None if all of them do not suffice."""
    operations = _operations(cycle, variant.spare)
    spans = _spans(cycle, operations)
    size = np.array([cycle.sizes[interval.weight] for interval in cycle.intervals], np.float64)
    values, kind = _classes(size)
    copies = [
        cycle.prefetch_seconds[a.weight] + cycle.offload_seconds[a.weight] * (a.version != FROZEN)
        for a in cycle.intervals
    ]
    # Relative worth of a byte that moves: an interval pays for two copies, or for one (frozen, or a sibling
    # is chosen). Only the ratio matters to the order of profits.
    worth = np.where([a.version == FROZEN for a in cycle.intervals], 1.0, 0.5)
    open_ = np.ones(len(size), np.bool_)
    late = size < worth_moving(cycle.machine)
    if variant.patient:
        late |= np.array(cycle.covered_seconds) < copies
    siblings = _siblings(cycle)
    excess, chosen = operations.excess, list[int]()
    while excess.max(initial=0.0) > 0.0:
        if not len(size):
            return None
        profit = _benefit(excess, values, kind, spans) / np.maximum(size, 1.0) * worth
        # Late ones are tried only if no other gains anything.
        for allowed in (open_ & ~late, open_):
            best = int(np.argmax(np.where(allowed, profit, -1.0)))
            if allowed[best] and profit[best] > 0.0:
                break
        else:
            return None
        open_[best] = False
        chosen.append(best)
        _cover(excess, size[best], spans, best)
        if variant.discount:
            worth[siblings.get(cycle.intervals[best].version, [])] = 1.0
    return chosen


def _operations(cycle: Cycle, spare: float) -> _Operations:
    of_run = np.zeros(cycle.runs, np.int64)
    for run in range(1, cycle.runs):
        same = cycle.used_by[run] == cycle.used_by[run - 1]
        of_run[run] = of_run[run - 1] + (not same)
    total = sum(cycle.sizes)
    own = [sum(cycle.sizes[weight] for weight in weights) for weights in cycle.used_by]
    excess = np.array(cycle.need, np.float64) + total + spare * np.array(own, np.float64) - cycle.limit
    # The excess of an operation is that of its most demanding run.
    merged = np.full(of_run.max(initial=-1) + 1, -np.inf)
    np.maximum.at(merged, of_run, excess)
    return _Operations(of_run, np.maximum(merged, 0.0))


class _Spans(NamedTuple):
    """The operations that each interval covers: first … last - 1, around the iteration's end if it wraps."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    wraps: NDArray[np.bool_]


def _spans(cycle: Cycle, operations: _Operations) -> _Spans:
    after = np.array([interval.after for interval in cycle.intervals], np.int64)
    before = np.array([interval.before for interval in cycle.intervals], np.int64)
    return _Spans(operations.of_run[after] + 1, operations.of_run[before], before <= after)


def _classes(size: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return representative sizes, the smallest of each class, and the class of each size."""
    distinct = np.unique(size)
    if len(distinct) > _SIZES:
        # Every class is represented by its smallest size, so a benefit is never overstated.
        distinct = distinct[np.linspace(0, len(distinct) - 1, _SIZES).astype(np.int64)]
    return distinct, np.searchsorted(distinct, size, side="right") - 1


def _benefit(
    excess: NDArray[np.float64], values: NDArray[np.float64], kind: NDArray[np.intp], spans: _Spans
) -> NDArray[np.float64]:
    """Return per interval Σ min(E_o, |w|) over the covered operations."""
    sums = np.zeros((len(values), len(excess) + 1))
    np.cumsum(np.minimum(excess, values[:, None]), axis=1, out=sums[:, 1:])
    # Prefix sums: an interval that wraps covers first … end and 0 … last - 1.
    return sums[kind, spans.last] - sums[kind, spans.first] + sums[kind, -1] * spans.wraps


def _cover(excess: NDArray[np.float64], size: float, spans: _Spans, interval: int) -> None:
    """Set E_o ← max(E_o - |w|, 0) for the covered operations."""
    first, last = spans.first[interval], spans.last[interval]
    for part in (slice(first, None), slice(last)) if spans.wraps[interval] else (slice(first, last),):
        excess[part] = np.maximum(excess[part] - size, 0.0)


def _siblings(cycle: Cycle) -> dict[int, list[int]]:
    """Return per version its intervals."""
    rows: dict[int, list[int]] = {}
    for number, interval in enumerate(cycle.intervals):
        if interval.version != FROZEN:
            rows.setdefault(interval.version, []).append(number)
    return rows


def moved_bytes(cycle: Cycle, chosen: Sequence[int]) -> int:
    """Return the bytes of the weights that the chosen intervals offload, each counted once."""
    return sum(cycle.sizes[weight] for weight in {cycle.intervals[number].weight for number in chosen})
