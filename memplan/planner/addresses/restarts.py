"""Complete searches (complete.py) in several orders, each with a limit that doubles from sweep to sweep.

How long one takes depends on luck in its first decisions, so many short ones find more than one long one.
Copies that were in contradictions come earlier in the next sweep. An end before the limit is the answer.
"""

from __future__ import annotations

from itertools import count

import numpy as np

from ...graphs.arrays import Floats, Ints
from .complete import LIMIT, LOWEST, NONE, RANK, Tried, search
from .first_fit import most_beside
from .lifetimes import Lifetimes
from .sections import Sections

_ORDERS = ("TWA", "TAW", "TCA", "A", "CAT", "TS", "WAT")
"""Orders by these, the largest first: T, the most bytes alongside; W, steps; A, steps times size;
C, sections; S, size. Three are MiniMalloc's."""

_DEEP = "TS"
"""The order of the one long search."""

_FIRST = 3
"""Decisions per copy of a search in the first sweep."""

_FORGET = 0.9
"""Factor of the weights of contradictions from sweep to sweep."""

MOST = 2_000
"""Copies, at most: each decision looks at all of a part."""


class Restarts:
    """Complete searches for layouts of some copies, none of them always resident."""

    def __init__(self, rows: Lifetimes) -> None:
        self._rows, self._sections = rows, Sections.of(rows)
        spans = rows.end - rows.start
        sections = np.diff(self._sections.own_start)
        values = (most_beside(rows), spans, spans * rows.size, sections, rows.size)
        self._values = dict(zip("TWACS", values, strict=True))

    def run(self, capacity: int, effort: int) -> Tried:
        """Search for offsets within a capacity. effort: work, at most."""
        weight, spent = np.zeros(len(self._rows.size)), 0
        tried = Tried(LIMIT, np.zeros(0, np.int64), 0)
        if (self._rows.size > capacity).any():
            return tried._replace(end=NONE)
        for sweep in count():
            more = 1 + sweep % 2 * weight / max(1.0, weight.max(initial=0.0))
            decisions = (_FIRST << sweep // 2) * len(self._rows.size)
            for keys in _ORDERS:
                order = self._order(keys, more)
                for choice in (RANK, LOWEST):
                    if spent >= effort:
                        return tried._replace(work=spent)
                    tried = self._search(
                        capacity, order, choice, decisions=decisions, effort=effort - spent, weight=weight
                    )
                    spent += tried.work
                    if tried.end != LIMIT:
                        return tried._replace(work=spent)
            weight *= _FORGET
        raise AssertionError

    def deep(self, capacity: int, effort: int) -> Tried:
        """Search once, with no limit but `effort`: one long search may find what many short ones miss."""
        weight = np.zeros(len(self._rows.size))
        return self._search(
            capacity,
            self._order(_DEEP, np.ones(len(weight))),
            LOWEST,
            decisions=effort,
            effort=effort,
            weight=weight,
        )

    def _order(self, keys: str, more: Floats) -> Ints:
        # Ties by time: what is found does not depend on the order in which copies are given.
        ties = -self._rows.end, self._rows.start
        return np.lexsort([*ties, *(-self._values[key] * more for key in reversed(keys))])

    def _search(
        self, capacity: int, order: Ints, choice: int, *, decisions: int, effort: int, weight: Floats
    ) -> Tried:
        return search(
            self._rows,
            self._sections,
            capacity,
            order,
            choice=choice,
            decisions=decisions,
            effort=effort,
            weight=weight,
        )
