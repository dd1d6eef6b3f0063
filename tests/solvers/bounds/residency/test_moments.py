"""Moments for the next round of a bound: those in excess, the largest first, apart from each other."""

from __future__ import annotations

import numpy as np
from memplan.solvers.bounds.residency.moments import largest


def test_the_largest_excesses_are_taken_first() -> None:
    excess = np.array([0.0, 3.0, -1.0, 5.0, 1.0, 4.0])
    assert largest(excess, 10) == [3, 5, 1, 4]
    assert largest(excess, 2) == [3, 5]
    assert largest(-np.abs(excess), 2) == []


def test_no_two_are_close_to_each_other() -> None:
    excess = np.zeros(32)
    excess[[8, 9, 13, 14]] = (5.0, 6.0, 4.0, 3.0)
    assert largest(excess, 2) == [9, 14]
