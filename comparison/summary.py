"""What the rows of a comparison say of each solver, and of each graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .trials import UNKNOWN, Bounds, Place, Row, gap

SAME = 1e-9
"""Relative difference up to which two times are the same."""

PROVEN = 1e-6
"""Relative difference up to which a bound is not above a time."""


@dataclass(frozen=True)
class Standing:
    """One solver in a comparison. solver: with the settings where the same solver competes with others.

    wins: where nobody was faster. overhead: percent, the mean where every solver that solved anything at
    all did; common: how many such places there are. gap: percent, to the largest bound that any row has, and
    seconds: means over its solved rows.
    """

    solver: str
    rows: int
    solved: int
    wins: int
    common: int
    overhead: float | None
    gap: float | None
    seconds: float | None


def standings(rows: Sequence[Row]) -> list[Standing]:
    names = solver_names(rows)
    best, bounds = best_times(rows), best_bounds(rows)
    mine: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        mine[names[row.solver, row.settings]].append(row)
    solved = {name: {row.place: row for row in own if row.solved} for name, own in mine.items()}
    common = set[Place].intersection(*(set(own) for own in solved.values() if own)) if best else set[Place]()
    return [
        Standing(
            name,
            len(own),
            len(solved[name]),
            sum(is_best(row, best) for row in own),
            len(common),
            _mean(row.overhead_percent for at, row in solved[name].items() if at in common),
            _mean(gap(row.time, bounds[at].lower) for at, row in solved[name].items()),
            _mean(row.seconds for row in solved[name].values()),
        )
        for name, own in mine.items()
    ]


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
    """The name of each solver and settings: with the settings only where there are several of them."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        if row.settings not in kinds.setdefault(row.solver, []):
            kinds[row.solver].append(row.settings)
    return {
        (solver, settings): f"{solver} {settings}" if len(several) > 1 else solver
        for solver, several in kinds.items()
        for settings in several
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
