"""Figures of each solver, and of each graph, from the rows of a comparison.

A solver that ran with several seeds is represented by the row of its median one.
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
"""Shift of geometric means of overheads, percentage points."""

SECONDS_SHIFT = 10.0
"""Shift of geometric means of seconds, so that very short runs do not dominate.

It is that of Mittelmann's benchmarks of optimization software.
"""


PENALTY = 10.0
"""Time limits that count for a problem without a schedule, in PAR10."""


@dataclass(frozen=True)
class Standing:
    """The figures of one solver in a comparison.

    solver: with the settings if the same solver competes with others.
    wins: number of problems on which no solver was faster.
    common: number of problems that every solver with any schedule solved.
    overhead: percent, the mean over the common problems.
    gap: percent, to the largest bound that any row has, the mean over its solved rows.
    seconds: mean over its solved rows.
    par10: seconds, the mean over its problems that are not proven infeasible, with 10 times the time limit
        for each without a schedule; None without a time limit.
    overhead_geometric, seconds_geometric: geometric means of the same, shifted by OVERHEAD_SHIFT (overheads
        below 0 count as 0) and SECONDS_SHIFT.
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
    par10: float | None


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
            solver=name,
            rows=len(own),
            solved=len(solved[name]),
            wins=sum(is_best(row, best) for row in own),
            common=len(common),
            overhead=_mean(
                overheads := [row.overhead_percent or 0.0 for at, row in solved[name].items() if at in common]
            ),
            overhead_geometric=geometric_mean(overheads, OVERHEAD_SHIFT),
            gap=_mean(gap(row.time, bounds[at].lower) for at, row in solved[name].items()),
            seconds=_mean(seconds := [row.seconds for row in solved[name].values()]),
            seconds_geometric=geometric_mean(seconds, SECONDS_SHIFT),
            par10=_par10([row for row in own if bounds[row.place].lower != inf]),
        )
        for name, own in mine.items()
    ]


def median_rows(rows: Iterable[Row]) -> list[Row]:
    """Return one row per solver and problem: that of the median schedule among its seeds.

    Of two in the middle it is the slower. A seed without a schedule comes after all that have one.
    """
    return [median(seeds) for seeds in by_seed(rows)]


def median(seeds: Sequence[Row]) -> Row:
    # Sorted by by_seed, so of two in the middle the slower.
    return seeds[len(seeds) // 2]


def by_seed(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each solver and problem, the fastest schedule first."""
    seeds: dict[tuple[Place, tuple[str, str]], list[Row]] = defaultdict(list)
    for row in rows:
        seeds[row.place, row.contestant].append(row)
    return [sorted(some, key=lambda row: inf if row.time is None else row.time) for some in seeds.values()]


def geometric_mean(values: Sequence[float], shift: float) -> float | None:
    """Return exp(mean(log(x + shift))) − shift, with values below 0 as 0; None without values."""
    if not values:
        return None
    return exp(fsum(log(max(x, 0.0) + shift) for x in values) / len(values)) - shift


def best_times(rows: Iterable[Row]) -> dict[Place, float]:
    """Return the seconds of the fastest verified schedule for each problem that has one."""
    best: dict[Place, float] = {}
    for row in rows:
        if row.solved and row.time is not None:
            best[row.place] = min(row.time, best.get(row.place, row.time))
    return best


def best_bounds(rows: Iterable[Row]) -> dict[Place, Bounds]:
    """Return the largest bounds that any row has, by problem."""
    bounds: dict[Place, Bounds] = {}
    for row in rows:
        bounds[row.place] = bounds.get(row.place, UNKNOWN).joined(row.bounds)
    return bounds


def refuted(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return rows whose lower bound another row's schedule refutes, with that row; one of them is wrong."""
    slowest_first = sorted((row for row in rows if row.time is not None), key=lambda row: -(row.time or 0.0))
    # Of each problem the dict keeps the last, which is the fastest.
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
    """Return the name of each contestant, with the settings only if its solver has several of them."""
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


def _par10(rows: Sequence[Row]) -> float | None:
    """Return the mean of the seconds, each row without a schedule as PENALTY time limits."""
    limits = [row.time_limit for row in rows]
    if None in limits:
        return None
    penalties = [PENALTY * (limit or 0.0) for limit in limits]
    return _mean(row.seconds if row.solved else most for row, most in zip(rows, penalties, strict=True))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def settled(rows: Sequence[Row]) -> int:
    """Return how many rows have a schedule, or a proof that there is none, in any order."""
    bounds = best_bounds(rows)
    proven = (bounds[row.place] for row in rows if not row.solved)
    return sum(row.solved for row in rows) + sum(inf in (one.lower, one.backward_once) for one in proven)
