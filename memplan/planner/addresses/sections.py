"""Sections of a cycle: the steps at which most copies are resident at once; all others are subsets of these.

    step      0 1 2 3 4 5 6 7
    a         ╶───╴                    sections: step 1 {a, b}, step 4 {b, c}, step 6 {c, d}
    b           ╶───────╴              step 3 has {b} alone, a subset of both its neighbours
    c                 ╶─────╴
    d                     ╶─╴

Two copies share a step if and only if they share a section, so a layout that is valid in these is valid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...graphs.arrays import Ints
from .lifetimes import Lifetimes


class Sections(NamedTuple):
    """The sections of lifetimes, none of them always resident. Ragged lists are in compressed rows.

    number: sections, numbered along the cycle; the last precedes the first.
    own, own_start: sections of row `i` in the order of its steps, from own_start[i] on.
    members, member_start: rows in section `s`, ascending, from member_start[s] on.
    """

    number: int
    own: Ints
    own_start: Ints
    members: Ints
    member_start: Ints

    @staticmethod
    def of(rows: Lifetimes) -> Sections:
        steps, ends = rows.steps, rows.end % max(1, rows.steps)
        begins, finishes = np.zeros(steps, np.bool_), np.zeros(steps, np.bool_)
        begins[rows.start] = finishes[ends] = True
        events = np.flatnonzero(begins | finishes)
        # A section is between a start and an end with no other event between; of one step ends come first.
        at = events[begins[events] & finishes[np.roll(events, -1)]]
        twice = np.concatenate([at, at + steps])
        first = np.searchsorted(twice, rows.start)
        many = np.searchsorted(twice, rows.end) - first
        own_start = np.concatenate([[0], np.cumsum(many)])
        of_row = np.repeat(np.arange(len(rows.size)), many)
        place = np.arange(int(own_start[-1]), dtype=np.int64) - own_start[of_row] + first[of_row]
        own: Ints = np.mod(place, max(1, len(at)))
        member_start = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=len(at)))])
        members = of_row[np.argsort(own, kind="stable")]
        return Sections(len(at), own, own_start, members, member_start)

    def most(self, values: Ints) -> Ints:
        """Return per row the largest of its sections' values."""
        return np.maximum.reduceat(values[self.own], self.own_start[:-1]) if len(self.own) else self.own
