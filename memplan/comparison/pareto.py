"""Time against memory of one graph: what is known of it by a comparison's rows, and which budget to try next.

A schedule within a budget is one within every larger budget; a bound holds for every smaller one. So what is
unknown between two budgets is a box: at least the time found at the larger, at most that at the smaller. The
next budget halves the largest box (the box algorithm: Hamacher, Pedersen and Ruzika, Finding representative
systems for discrete bicriterion optimization problems, Operations Research Letters 35, 2007).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from .trials import Instance, Row, gap

NARROWEST = 0.01
"""Share of the baseline's peak below which a box is narrow enough."""
LOWEST = 0.001
"""Share of the baseline's time below which a box is low enough."""
NONE_FOUND = 2.0
"""Time that counts for a budget without a schedule, in times of the slowest schedule known."""


@dataclass(frozen=True)
class Point:
    """Best schedule and bound known within a budget in bytes.

    time, peak: seconds and bytes of the fastest schedule found within it; inf and the budget if there is
        none.
    bound: lower bound of any schedule within it, seconds; inf: there is none.
    """

    budget: int
    time: float
    peak: int
    bound: float = 0.0

    @property
    def gap_percent(self) -> float | None:
        return gap(None if self.time == inf else self.time, self.bound or None)


def points(on: Instance, rows: Iterable[Row]) -> list[Point]:
    """Return a point per budget of the rows and one at the baseline's peak, the smallest budget first."""
    rows = [row for row in rows if row.sha256 == on.sha256]
    found = [Point(on.baseline_peak, on.baseline_time, on.baseline_peak)]
    found += [Point(row.budget, row.time, row.peak) for row in rows if row.time and row.peak is not None]
    bounds = {row.budget: 0.0 for row in rows}
    for row in rows:
        bounds[row.budget] = max(bounds[row.budget], row.lower_bound or 0.0)
    return [_point(budget, found, bounds) for budget in sorted({*bounds, on.baseline_peak})]


def _point(budget: int, found: Sequence[Point], bounds: dict[int, float]) -> Point:
    # A schedule of a larger budget counts too, if its peak fits here.
    within = [one for one in found if one.peak <= budget]
    best = min(within, key=lambda one: (one.time, one.peak), default=Point(budget, inf, budget))
    bound = max((bound for other, bound in bounds.items() if other >= budget), default=0.0)
    return Point(budget, best.time, best.peak, bound)


def next_budget(on: Instance, known: Sequence[Point], min_memory: int) -> int | None:
    """Return the middle of the largest box, in bytes, None if all boxes are small.

    known: the result of `points`.
    min_memory: minimum memory, bytes.
    """
    slowest = max(one.time for one in known if one.time < inf)
    # The first end is below every schedule, so that the smallest budgets have a box too.
    ends = [Point(min_memory - 1, inf, min_memory - 1), *(one for one in known if one.budget >= min_memory)]
    boxes = [
        (width * height, left.budget + width // 2)
        for left, right in pairwise(ends)
        if right.time < inf
        # To its peak, not its budget: between the two it is known to fit.
        and (width := right.peak - left.budget) > max(1.0, NARROWEST * on.baseline_peak)
        and (height := min(left.time, NONE_FOUND * slowest) - right.time) > LOWEST * on.baseline_time
    ]
    return max(boxes)[1] if boxes else None
