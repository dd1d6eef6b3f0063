"""What the rows of a comparison say of each solver, and of each graph.

A solver that ran with several seeds stands with the row of its median one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum, inf, log
from statistics import fmean

from .trials import UNKNOWN, Bounds, Place, Row, gap

SAME = 1e-9
"""Relative difference up to which two times are the same."""

PROVEN = 1e-6
"""Relative difference up to which a bound is not above a time."""


OVERHEAD_SHIFT = 10.0
"""Percentage points."""

SECONDS_SHIFT = 10.0
"""As in Mittelmann's benchmarks of optimization software, so that runs of a moment do not count for all."""


@dataclass(frozen=True)
class Standing:
    """One solver in a comparison. solver: with the settings where the same solver competes with others.

    wins: where nobody was faster. overhead: percent, the mean where every solver that solved anything at
    all did; common: how many such places there are. gap: percent, to the largest bound that any row has, and
    seconds: means over its solved rows. overhead_geometric, seconds_geometric: geometric means of the same,
    shifted by OVERHEAD_SHIFT (overheads below 0 count as 0) and SECONDS_SHIFT.
    """

    solver: str
    rows: int
    solved: int
    wins: int
    common: int
    overhead: float | None
    overhead_geometric: float | None
    gap: float | None
    seconds: float | None
    seconds_geometric: float | None


def standings(rows: Sequence[Row]) -> list[Standing]:
    rows = median_rows(rows)
    names = solver_names(rows)
    best, bounds = best_times(rows), best_bounds(rows)
    mine: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        mine[names[row.contestant]].append(row)
    solved = {name: {row.place: row for row in own if row.solved} for name, own in mine.items()}
    common = set[Place].intersection(*(set(own) for own in solved.values() if own)) if best else set[Place]()
    return [
        Standing(
            name,
            len(own),
            len(solved[name]),
            sum(is_best(row, best) for row in own),
            len(common),
            _mean(
                overheads := [row.overhead_percent or 0.0 for at, row in solved[name].items() if at in common]
            ),
            geometric_mean(overheads, OVERHEAD_SHIFT),
            _mean(gap(row.time, bounds[at].lower) for at, row in solved[name].items()),
            _mean(seconds := [row.seconds for row in solved[name].values()]),
            geometric_mean(seconds, SECONDS_SHIFT),
        )
        for name, own in mine.items()
    ]


def median_rows(rows: Iterable[Row]) -> list[Row]:
    """One row of each solver at each place: that of the median schedule among its seeds, the slower of two in
    the middle. A seed without a schedule is behind all that have one."""
    return [median(seeds) for seeds in by_seed(rows)]


def median(seeds: Sequence[Row]) -> Row:
    return seeds[len(seeds) // 2]


def by_seed(rows: Iterable[Row]) -> list[list[Row]]:
    """For each solver and place its rows, the fastest schedule first."""
    seeds: dict[tuple[Place, tuple[str, str]], list[Row]] = defaultdict(list)
    for row in rows:
        seeds[row.place, row.contestant].append(row)
    return [sorted(some, key=lambda row: inf if row.time is None else row.time) for some in seeds.values()]


def geometric_mean(values: Sequence[float], shift: float) -> float | None:
    """exp(mean(log(x + shift))) − shift, a value below 0 as 0; None of none."""
    if not values:
        return None
    return exp(fsum(log(max(x, 0.0) + shift) for x in values) / len(values)) - shift


def best_times(rows: Iterable[Row]) -> dict[Place, float]:
    """Seconds of the fastest verified schedule at each place that has one."""
    best: dict[Place, float] = {}
    for row in rows:
        if row.solved and row.time is not None:
            best[row.place] = min(row.time, best.get(row.place, row.time))
    return best


def best_bounds(rows: Iterable[Row]) -> dict[Place, Bounds]:
    """The largest that any row has."""
    bounds: dict[Place, Bounds] = {}
    for row in rows:
        bounds[row.place] = bounds.get(row.place, UNKNOWN).joined(row.bounds)
    return bounds


def refuted(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows whose lower bound another row's schedule refutes, with that row: a fault of one of the two."""
    slowest_first = sorted((row for row in rows if row.time is not None), key=lambda row: -(row.time or 0.0))
    fastest = {row.place: row for row in slowest_first}
    return [
        (row, other)
        for row in rows
        if row.lower_bound is not None
        and (other := fastest.get(row.place)) is not None
        and other.time is not None
        and row.lower_bound > other.time * (1 + PROVEN)
    ]


def is_best(row: Row, best: Mapping[Place, float]) -> bool:
    return row.solved and row.time is not None and row.time <= best[row.place] * (1 + SAME)


def solver_names(rows: Iterable[Row]) -> dict[tuple[str, str], str]:
    """The name of each contestant: with the settings only where a solver has several of them."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        solver, settings = row.contestant
        if settings not in kinds.setdefault(solver, []):
            kinds[solver].append(settings)
    return {
        (solver, settings): f"{solver} {settings}" if len(several) > 1 else solver
        for solver, several in kinds.items()
        for settings in several
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
