"""Linear expressions against their values, and constraints against the rows that models write of them."""

from __future__ import annotations

from itertools import product
from math import inf
from random import Random

import numpy as np
import pytest
from memplan.solvers.milp.linear import ONE, ZERO, Constraint, Linear, column_sum, total
from memplan.solvers.milp.model import Model, Program

COLUMNS = 4
TERMS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0)


def random_expression(random: Random) -> Linear:
    """Few columns and many terms, so that columns stand in several terms, and some of these cancel."""
    terms = [(random.randrange(COLUMNS), random.choice(TERMS)) for _ in range(random.randint(0, 6))]
    return Linear(terms, random.choice(TERMS))


def random_constraint(random: Random) -> Constraint:
    left, right = random_expression(random), random_expression(random)
    return random.choice((left <= right, left >= right, left.equals(right), left <= 1.5, left >= -1.5))


def points(upper: list[float]) -> list[np.ndarray]:
    return [np.array(point, np.float64) for point in product(*([0.0, limit / 2, limit] for limit in upper))]


def holds(program: Program, x: np.ndarray) -> bool:
    activity = program.activity(x)
    return bool(np.all(program.row_lower <= activity) and np.all(activity <= program.row_upper))


@pytest.mark.parametrize("seed", range(50))
def test_operators_do_what_they_do_to_values(seed: int) -> None:
    random = Random(seed)
    a, b, c = (random_expression(random) for _ in range(3))
    x = np.array([random.choice(TERMS) for _ in range(COLUMNS)])
    va, vb, vc = (one.value(x) for one in (a, b, c))
    assert (a + b - c).value(x) == pytest.approx(va + vb - vc)
    assert (2.0 * a - 1.0).value(x) == pytest.approx(2 * va - 1)
    assert (1.0 - a).value(x) == pytest.approx(1 - va)
    assert (-a).value(x) == pytest.approx(-va)
    assert total([a, b, c]).value(x) == pytest.approx(va + vb + vc)
    assert total([]).value(x) == ZERO.value(x) == 0.0
    assert ONE.value(x) == 1.0
    assert column_sum(0, None, 2).value(x) == x[0] + x[2]


@pytest.mark.parametrize("unless_implied", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_a_point_keeps_the_rows_if_it_keeps_the_constraints(seed: int, unless_implied: bool) -> None:
    random = Random(seed)
    model, upper = Model(), [random.choice((1.0, 2.0)) for _ in range(COLUMNS)]
    for limit in upper:
        model.column(upper=limit)
    constraints = [random_constraint(random) for _ in range(3)]
    for constraint in constraints:
        model.add(constraint, unless_implied=unless_implied)
    program = model.program()
    for x in points(upper):
        differences = [(c.left.value(x) - c.right.value(x), c.lower, c.upper) for c in constraints]
        assert holds(program, x) == all(low <= value <= high for value, low, high in differences)


@pytest.mark.parametrize("seed", range(100))
def test_a_row_is_left_out_when_every_point_within_the_limits_keeps_it(seed: int) -> None:
    """A linear function is extreme at a corner, so the corners of the box decide."""
    random = Random(seed)
    model, upper = Model(), [1.0] * COLUMNS
    for limit in upper:
        model.column(upper=limit)
    constraint = random_constraint(random)
    model.add(constraint, unless_implied=True)
    values = [constraint.left.value(x) - constraint.right.value(x) for x in points(upper)]
    implied = all(constraint.lower <= value <= constraint.upper for value in values)
    assert len(model.program().row_lower) == (not implied)


def test_terms_of_one_column_are_one_entry_and_zeros_none() -> None:
    model = Model()
    a, b, c = (model.variable() for _ in range(3))
    model.add(a + b + a >= b + 1.0)
    model.row([(c.column, 2.0), (a.column, 1.0)], upper=3.0)
    program = model.program()
    assert program.start.tolist() == [0, 1, 3]
    assert dict(zip(program.columns[:1].tolist(), program.values[:1].tolist(), strict=True)) == {0: 2.0}
    assert program.row_lower.tolist() == [1.0, -inf]
    assert program.row_upper.tolist() == [inf, 3.0]


def test_a_variable_without_limit_never_implies_a_row() -> None:
    model = Model()
    model.add(model.variable(upper=inf) <= 5.0, unless_implied=True)
    model.add(model.variable(lower=-inf) >= 0.0, unless_implied=True)
    assert len(model.program().row_lower) == 2
