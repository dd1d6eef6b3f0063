"""Programs of any magnitude: the same answer as their ordinary twins, and no bound above it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.solvers.milp import solve as milp
from memplan.solvers.milp.model import Model, Program
from memplan.solvers.milp.result import MilpStatus
from memplan.solvers.milp.safe_bounds import relaxed
from memplan.solvers.milp.scaling import scaled


def knapsack(worths: list[int], sizes: list[int], room: int) -> Program:
    """Which things to leave out, at least cost; and a continuous column for a half of the last."""
    model = Model()
    columns = [model.binary(cost=float(worth)) for worth in worths]
    rest = model.column(upper=0.5, cost=float(worths[-1]))
    left = sum(sizes) - room
    model.row([*zip(columns, map(float, sizes), strict=True), (rest, float(sizes[-1]))], lower=float(left))
    return model.program()


PROGRAMS = st.integers(2, 6).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 9), min_size=count, max_size=count),
        st.lists(st.integers(1, 9), min_size=count, max_size=count),
        st.integers(0, 20),
    )
)
EXPONENTS = st.sampled_from((-900, -200, -60, -40, 0, 40, 60, 200, 900))


def stretched(program: Program, cost: int, rows: int, column: int) -> Program:
    """The same, in other units: of the cost, of the rows, of the continuous column, which is the last."""
    factor = np.ones(len(program.cost))
    factor[-1] = np.ldexp(1.0, column)
    return replace(
        program,
        cost=np.ldexp(program.cost * factor, cost),
        values=np.ldexp(program.values * factor[program.columns], rows),
        upper=program.upper / factor,
        row_lower=np.ldexp(program.row_lower, rows),
        row_upper=np.ldexp(program.row_upper, rows),
    )


@settings(max_examples=60)
@given(PROGRAMS, EXPONENTS, EXPONENTS, st.sampled_from((-90, 0, 90)))
def test_other_units_change_nothing(
    parts: tuple[list[int], list[int], int], cost: int, rows: int, column: int
) -> None:
    baseline = knapsack(*parts)
    odd = stretched(baseline, cost, rows, column)
    expected, found = milp.solve(baseline), milp.solve(odd)
    assert found.status == expected.status == MilpStatus.OPTIMAL
    assert found.objective is not None
    assert expected.objective is not None
    assert np.ldexp(found.objective, -cost) == pytest.approx(expected.objective, rel=1e-5, abs=1e-5)
    assert found.bound <= found.objective
    fractions = relaxed(odd)
    assert np.ldexp(fractions.bound, -cost) <= expected.objective * (1 + 1e-6) + 1e-9
    assert np.ldexp(fractions.bound, -cost) == pytest.approx(relaxed(baseline).bound, rel=1e-5, abs=1e-5)


def test_ordinary_numbers_stay_as_they_are() -> None:
    """But for the cost, whose unit is chosen."""
    program = knapsack([3, 1, 4], [1, 5, 9], 6)
    fit = scaled(program)
    for name, before in vars(program).items():
        assert name in ("cost", "offset") or np.array_equal(getattr(fit.program, name), before)
    assert not fit.columns.any()
    assert 2**19 <= fit.program.cost.sum() < 2**20


def test_what_is_beyond_numbers_bounds_nothing_falsely() -> None:
    model = Model()
    x = model.column(upper=1.0, cost=1.0)
    y = model.column(upper=1.0, cost=1e-3)
    model.row([(x, 1.0), (y, float("inf"))], lower=1.0)
    assert relaxed(model.program()).bound <= 1e-3


@pytest.mark.parametrize("large", [2.0**40, 2.0**62])
def test_three_bytes_beside_tebibytes(large: float) -> None:
    """They count for nothing there, and make no claim: the answer is above the bound."""
    model = Model()
    columns = [model.binary(cost=1.0) for _ in range(3)]
    model.row(zip(columns, (large, 3.0, large), strict=True), lower=large + 3.0)
    result = milp.solve(model.program())
    assert result.status == MilpStatus.OPTIMAL
    assert result.bound <= 2.0
