"""PAR10 and the signed-rank test: by hand, and against the enumeration of all signs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from random import Random

import pytest
from memplan.comparison import paired as module
from memplan.comparison.paired import Paired, paired, signed_rank_p
from memplan.comparison.summary import standings
from memplan.comparison.tables import paired_tables
from memplan.comparison.trials import Row

Rows = Callable[..., Row]


def enumerated(differences: Sequence[float]) -> float:
    """The share of all assignments of signs whose sum of ranks is as far from the middle."""
    sizes = sorted(abs(each) for each in differences if each)
    if not sizes:
        return 1.0
    rank = {
        size: sum(at + 1 for at, other in enumerate(sizes) if other == size) / sizes.count(size)
        for size in sizes
    }
    ranks = [rank[abs(each)] for each in differences if each]
    signs = [each > 0 for each in differences if each]
    middle = sum(ranks) / 2

    def apart(chosen: Sequence[bool]) -> float:
        return abs(sum(rank for rank, yes in zip(ranks, chosen, strict=True) if yes) - middle)

    every = list(product((False, True), repeat=len(ranks)))
    return sum(apart(chosen) >= apart(signs) - 1e-9 for chosen in every) / len(every)


@pytest.mark.parametrize("seed", range(40))
def test_the_p_value_is_the_enumeration(seed: int) -> None:
    """With ties, zeros and infinite differences."""
    chance = Random(seed)
    known = [-inf, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, inf]
    differences = [chance.choice(known) for _ in range(chance.randint(0, 10))]
    assert signed_rank_p(differences) == pytest.approx(enumerated(differences), abs=1e-12)
    assert signed_rank_p([-each for each in differences]) == signed_rank_p(differences)


def test_p_values_of_tables() -> None:
    """n differences of one sign: 2 / 2^n. n = 10 with rank sum 8: 0.0488 (Siegel, Table G: 8 at 0.05)."""
    assert signed_rank_p([1.0, 2.0, 3.0, 4.0, 5.0]) == 2 / 32
    assert signed_rank_p([-8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0, 10.0]) == pytest.approx(
        0.0488, abs=5e-5
    )


@pytest.mark.parametrize("shift", [0.0, 0.15, 0.4])
def test_many_problems_are_approximated(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(7)
    differences = [round(chance.gauss(shift, 1.0), 1) for _ in range(50)]
    exact = signed_rank_p(differences)
    monkeypatch.setattr(module, "EXACT", 0)
    assert signed_rank_p(differences) == pytest.approx(exact, rel=0.15)


def test_solvers_by_hand(rows: Rows) -> None:
    """a is best on all six; b is slower on each; c has no schedule on five and equals a on one."""
    a = [rows("a", f"g{k}", 60, 10.0) for k in range(6)]
    b = [rows("b", f"g{k}", 60, 11.0 + k) for k in range(6)]
    c = [rows("c", f"g{k}", 60, 10.0 if k == 0 else None) for k in range(6)]
    assert paired([*b, *a, *c]) == [
        Paired("a", "b", 6, 0, 0, 2 / 64, 2 * 2 / 64),
        Paired("a", "c", 5, 0, 1, 2 / 32, 2 / 32),
    ]
    [table] = paired_tables([*b, *a, *c])
    assert table.title == "a against each other solver"
    assert table.rows == [["6", "0", "0", "0.031", "0.062", "b"], ["5", "0", "1", "0.062", "0.062", "c"]]


def test_few_problems_have_counts_and_no_test(rows: Rows) -> None:
    a, b = ([rows(name, f"g{k}", 60, time) for k in range(5)] for name, time in (("a", 10.0), ("b", 11.0)))
    [table] = paired_tables([*a, *b])
    assert table.rows == [["5", "0", "0", "b"]]
    assert "Wilcoxon" not in table.hint
    assert "a test needs 6 problems that differ" in table.hint


def test_problems_that_nobody_solves_are_left_out(rows: Rows) -> None:
    a = [rows("a", "g", 60, 10.0), rows("a", "h", 60, None)]
    b = [rows("b", "g", 60, 12.0), rows("b", "h", 60, None)]
    [one] = paired([*a, *b])
    assert (one.faster, one.slower, one.equal, one.p) == (1, 0, 0, 1.0)
    assert paired(a[1:] + b[1:]) == []
    assert list(paired_tables(a)) == []


def test_par10_by_hand(rows: Rows) -> None:
    """Two seconds and three; no schedule costs ten limits; a problem that is proven to have none is out."""
    timed = [
        replace(rows("a", "g", 60, 10.0), seconds=2.0, time_limit=7.0),
        replace(rows("a", "h", 60, 10.0), seconds=3.0, time_limit=7.0),
        replace(rows("a", "i", 60, None), seconds=7.0, time_limit=7.0),
        replace(rows("a", "j", 60, None), seconds=0.1, time_limit=7.0, lower_bound=inf),
    ]
    [one] = standings(timed)
    assert one.par10 == pytest.approx((2 + 3 + 70) / 3)
    [without] = standings([replace(row, time_limit=None) for row in timed])
    assert without.par10 is None
