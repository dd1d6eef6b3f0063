"""Changes between an earlier table of a comparison and this one: which rows are better or worse."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from .trials import Outcome, Row

TOLERANCE = 0.001
"""Relative difference up to which schedules take the same time."""


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    EQUAL = "equal"
    NEW = "new"
    GONE = "gone"


class Change(NamedTuple):
    """The change of one trial's row. old, new: None if that table lacks it."""

    verdict: Verdict
    old: Row | None
    new: Row | None

    @property
    def row(self) -> Row:
        """The new row, or the old one if there is no new one."""
        row = self.new or self.old
        assert row is not None
        return row

    @property
    def percent(self) -> float | None:
        """Time by which the new schedule is longer, in percent of the old one's; None if one has no time."""
        # A time of 0 has no percentage either.
        if self.old is None or self.new is None or not self.old.time or self.new.time is None:
            return None
        return 100.0 * (self.new.time / self.old.time - 1)


def changes(old: Sequence[Row], new: Sequence[Row], tolerance: float = TOLERANCE) -> list[Change]:
    """Compare two tables row by row, those of the new table first.

    A row with a schedule is better than one without, a refusal better than a crash or a hang. Of two
    schedules the faster one is better, if by more than `tolerance` of the other's time. Rows are matched by
    the same graph (by content), budget in bytes, solver and seed. If a table has a solver with several
    settings or time limits, these must match too.
    """
    key = _key([old, new])
    before = {key(row): row for row in old}
    found = [_change(before.pop(key(row), None), row, tolerance) for row in new]
    return found + [Change(Verdict.GONE, row, None) for row in before.values()]


def _change(old: Row | None, new: Row, tolerance: float) -> Change:
    if old is None:
        return Change(Verdict.NEW, None, new)
    ranks = _rank(old), _rank(new)
    if ranks[0] != ranks[1]:
        return Change(Verdict.WORSE if ranks[1] > ranks[0] else Verdict.BETTER, old, new)
    if old.time is None or new.time is None or abs(new.time - old.time) <= tolerance * old.time:
        return Change(Verdict.EQUAL, old, new)
    return Change(Verdict.WORSE if new.time > old.time else Verdict.BETTER, old, new)


def _rank(row: Row) -> int:
    """Return 0 for a schedule, 1 for a refusal, 2 for a crash or a hang."""
    return 0 if row.solved else 2 if row.outcome in (Outcome.FAULT, Outcome.TIMEOUT) else 1


def _key(tables: Iterable[Sequence[Row]]) -> Callable[[Row], Hashable]:
    several: set[str] = set()
    for rows in tables:
        variants = defaultdict[str, set[Hashable]](set)
        for row in rows:
            variants[row.solver].add((row.contestant, row.time_limit))
        several |= {solver for solver, own in variants.items() if len(own) > 1}

    def key(row: Row) -> Hashable:
        # A solver that stands once in each table matches itself, whatever its settings are by now.
        variant = (row.contestant, row.time_limit) if row.solver in several else row.solver
        return row.place, variant, row.seed

    return key
