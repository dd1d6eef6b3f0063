"""Arcs of a cycle meet if they share a step, by enumeration."""

from __future__ import annotations

from itertools import product

from memplan.planner.addresses.first_fit import meet

STEPS = 5


def test_arcs_meet_if_they_share_a_step() -> None:
    arcs = [(start, start + span) for start in range(STEPS) for span in range(1, STEPS + 1)]
    for (s, e), (t, f) in product(arcs, arcs):
        one, other = ({step % STEPS for step in range(*arc)} for arc in ((s, e), (t, f)))
        assert meet(s, e, t, f, STEPS) == (not one.isdisjoint(other)), (s, e, t, f)
