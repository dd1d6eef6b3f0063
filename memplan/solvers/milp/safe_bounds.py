"""Lower bounds from linear programs whose variables are all bounded, true whatever the solver does.

For prices y of the rows, every x within its bounds has

    cost · x  ≥  Σ_r y_r · (row_lower_r if y_r > 0 else row_upper_r) + Σ_j min over x_j of (cost − Aᵀ y)_j x_j

so any y gives a bound: the solver's gives the best, one of a search that was cut short a weaker one. Prices
that presolve has spoilt give a weaker one too; they are computed once more without it. If the
right side is positive with cost 0, the rows have no solution at all (Farkas).

The right side is computed in floats, and lowered by the most that rounding can have raised it: of the sums
here, and of the program's own coefficients and limits, each of which is taken for the nearest float of a
product, a quotient, or a sum of terms of one sign. So the bound holds for the program in exact numbers.

Reference: A. Neumaier,
O. Shcherbina, Safe bounds in linear and mixed-integer linear programming, 2004,
doi:10.1007/s10107-003-0433-3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan

import numpy as np

from ...graphs.arrays import Floats
from ..clock import Clock
from . import highs
from .model import Program
from .scaling import scaled

ROUNDING = 2.0**-52
"""Twice the largest relative change by rounding to the nearest."""

_LOOSE = 0.01
"""Share of a solution's cost by which the bound is below it where the prices are computed once more."""

DATA = 8
"""Number of roundings in a coefficient; a limit has as many more as there are columns, as it may be a sum."""


@dataclass(frozen=True, eq=False)
class Linear:
    """The bound of a linear program, with the solver's answer.

    bound: no x within the rows costs less; ∞: there is no such x.
    x: the solver's answer, None without one.
    """

    bound: float
    x: Floats | None
    interrupted: bool = False


def relaxed(
    program: Program, time_limit: float | None = None, cancelled: Callable[[], bool] = lambda: False
) -> Linear:
    """Solve the program with its integers as fractions, and bound it.

    cancelled: whether the time is over.
    """
    fit, clock = scaled(program), Clock(time_limit, cancelled)
    program = fit.program
    answer = highs.relax(program, time_limit, cancelled)
    # With cost 0 every solution costs 0: a bound above 0 leaves none.
    if answer.ray is not None and _priced(program, np.zeros_like(program.cost), answer.ray) > 0.0:
        return Linear(inf, None, answer.interrupted)
    bound = _bound(program, answer.prices)
    if _is_loose(program, bound, answer) and clock.goes_on():
        other = highs.relax(program, clock.limit, cancelled, presolve=False)
        bound = max(bound, _bound(program, other.prices))
    x = None if answer.x is None else fit.x(answer.x)
    return Linear(fit.cost(bound + program.offset), x, answer.interrupted)


def _bound(program: Program, prices: Floats | None) -> float:
    return -inf if prices is None else _priced(program, program.cost, prices)


def _is_loose(program: Program, bound: float, answer: highs.Relaxation) -> bool:
    """Tell whether the prices are not those of the solution: HiGHS's presolve may leave such, undone."""
    if answer.x is None or answer.interrupted:
        return False
    cost = float(program.cost @ answer.x)
    return bound < cost - _LOOSE * abs(cost + program.offset)


def _priced(program: Program, cost: Floats, prices: Floats) -> float:
    """Return the right side above for the prices whose row limit is finite; −∞ if it is not a number."""
    with np.errstate(over="ignore", invalid="ignore"):
        bound = _sum(program, cost, prices)
    return -inf if isnan(bound) else bound


def _sum(program: Program, cost: Floats, prices: Floats) -> float:
    limits = np.where(prices > 0.0, program.row_lower, program.row_upper)
    # A price on a missing limit would make the bound −∞: without it, it is weaker and true.
    known = np.isfinite(limits)
    prices, limits = np.where(known, prices, 0.0), np.where(known, limits, 0.0)
    count = len(cost)
    parts = program.values * np.repeat(prices, np.diff(program.start))
    reduced = cost - np.bincount(program.columns, parts, minlength=count)
    terms = np.abs(cost) + np.bincount(program.columns, np.abs(parts), minlength=count)
    entries = np.bincount(program.columns, minlength=count)
    # By so much a reduced cost may be off: one rounding an addition, those of its data.
    unsure = ROUNDING * (entries + DATA) * terms
    unsure[terms == 0.0] = 0.0
    at_rows = prices * limits
    # a column's least is concave in its reduced cost, so over the interval it is smallest at an end
    at_columns = np.minimum(_least(reduced - unsure, program), _least(reduced + unsure, program))
    size = float(np.abs(at_rows).sum() + np.abs(at_columns).sum())
    total = float(at_rows.sum() + at_columns.sum())
    return total - ROUNDING * (DATA + count + len(limits)) * size


def _least(reduced: Floats, program: Program) -> Floats:
    """Return per column the least of reduced · x within its bounds."""
    least = np.minimum(reduced * program.lower, reduced * program.upper)
    # 0 · ∞ is nan; the term is 0.
    least[reduced == 0.0] = 0.0
    return least
