"""Refusals told again for a budget that holds other things too."""

from __future__ import annotations

from math import inf

from memplan.solvers.problem import Bound, InfeasibleError, NotFoundError


def test_a_refusal_beside_other_bytes_keeps_what_it_knows() -> None:
    refusal = InfeasibleError("rotor", 100, 150, 90)
    refusal.notes = ("a note",)
    refusal.tell(120, ())
    more = refusal.beside(1000)
    assert (more.budget, more.least, more.floor, more.once_floor) == (1100, 1150, 1090, 1120)
    assert more.notes == ("a note",)
    assert str(more).endswith("unless a backward operation runs twice")
    assert "1,120 B" in str(more)


def test_one_that_found_nothing_stays_one() -> None:
    refusal = NotFoundError("search", 100, 90, 110)
    refusal.tell(None, [Bound(inf, "residency", "any")])
    more = refusal.beside(1000)
    assert isinstance(more, NotFoundError)
    assert (more.budget, more.floor, more.found, more.least) == (1100, 1090, 1110, None)
    assert "is 1,110 B" in str(more)
    assert str(more).endswith("it is proven that there is none in any order")
