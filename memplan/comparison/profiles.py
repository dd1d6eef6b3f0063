"""Profiles of solvers: on how many problems each is how good, and how soon, as steps for plots and tables.

A performance profile is that of Dolan and Moré ("Benchmarking optimization software with performance
profiles", Mathematical Programming 91, 2002), with the seconds of schedules as the measure. It has for each
solver the share of the problems on which its schedule takes at most τ times as long as the fastest one's. At
τ = 1 this is how often no solver was faster, far to the right how many problems it solves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from .summary import SAME, best_bounds, best_times, median_rows, solver_names
from .trials import Row

TARGETS = (0.05, 0.01)
"""Gaps, as a share of a schedule's seconds, for which there are curves of the time to reach them."""


class Curve(NamedTuple):
    """The curve of one solver. steps: ascending; at each the curve rises by one of `problems`."""

    solver: str
    steps: tuple[float, ...]
    problems: int

    def share(self, at: float) -> float:
        # A step at the very value counts.
        return bisect_right(self.steps, at) / self.problems


def performance_profiles(rows: Iterable[Row]) -> list[Curve]:
    """Return the performance profiles, with steps at values of τ.

    A problem is a graph and a budget for which any solver has a schedule.
    """
    rows = median_rows(rows)
    best = best_times(rows)

    def ratio(row: Row) -> float:
        if not row.solved or row.time is None:
            return inf
        fastest = best[row.place]
        # A fastest time of 0 has no quotients.
        return 1.0 if row.time <= fastest * (1 + SAME) else row.time / fastest if fastest else inf

    return _curves(rows, len(best), ratio)


def times_to_gap(rows: Iterable[Row], gap: float) -> list[Curve]:
    """Return the curves of the time to a gap, with steps at seconds of the solver.

    A problem is a graph and a budget with a finite lower bound. A step is at the time when the solver had a
    schedule within `gap` of the largest bound that any row has.
    """
    rows = median_rows(rows)
    bounds = {place: one.lower for place, one in best_bounds(rows).items()}
    known = {place: bound for place, bound in bounds.items() if bound and bound < inf}

    def seconds(row: Row) -> float:
        # (time - bound) / time <= gap, solved for the time.
        limit = known.get(row.place, -inf) / (1 - gap) * (1 + SAME)
        return min((found.seconds for found in row.history if found.time <= limit), default=inf)

    return _curves(rows, len(known), seconds)


def _curves(rows: Sequence[Row], problems: int, measure: Callable[[Row], float]) -> list[Curve]:
    """Return the curves, the solver with the most steps first."""
    names, steps = solver_names(rows), defaultdict[str, list[float]](list)
    for row in rows:
        own, value = steps[names[row.contestant]], measure(row)
        if value < inf:
            own.append(value)
    curves = [Curve(name, tuple(sorted(own)), problems) for name, own in steps.items() if problems]
    return sorted(curves, key=lambda curve: (-len(curve.steps), sum(curve.steps)))
