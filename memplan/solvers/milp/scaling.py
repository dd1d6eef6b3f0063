"""Programs of any magnitude for solvers of limited range: scaled before, and scaled back afterwards.

    row r · 2^rows_r,   continuous column j · 2^columns_j,   cost · 2^objective

Factors are powers of two, so nothing is rounded but what falls below the range of numbers, a 10³⁰⁰th of the
row's largest. Only what is far from 1 is scaled: a program of ordinary numbers stays as it is. HiGHS takes
coefficients up to 1e15 and leaves out those below 1e-9. Rows are scaled first, by their integers if they have
any, as these keep their unit; then columns; then what is still large in a row.

The cost of a program with integers is always scaled, to 2^COST_BITS in all: solvers discard what improves on
the best answer by less than an absolute tolerance of 1e-6 or so, and then call that answer's cost a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Floats
from .model import Program
from .result import Result

FAR = 30
"""Exponents of two beyond which a row, a column or the cost is scaled."""

MOST = 500
"""The largest exponent of a column, so that none of its limits gets beyond the range of numbers. An integer
whose coefficient is smaller than the row's largest by more counts for nothing."""

LARGEST = 1e300
"""Replacement of ∞ as a coefficient: what it multiplies has to be 0, or almost 0."""

COST_BITS = 20
"""Bits of the sum of all costs after scaling.

The tolerance is then 1e-12 of all costs; `highs` and others take numbers of this size without loss.
"""

Exponents = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Scaled:
    """A scaled program, and how to scale its answers back.

    program: the one to solve.
    columns, objective: exponents of two.
    """

    program: Program
    columns: Exponents
    objective: int

    def start(self, values: Mapping[int, float]) -> dict[int, float]:
        return {j: float(np.ldexp(value, -self.columns[j])) for j, value in values.items()}

    def x(self, scaled: Floats) -> Floats:
        """Return the values of the columns before scaling."""
        return np.ldexp(scaled, self.columns) if len(scaled) == len(self.columns) else scaled

    def result(self, scaled: Result) -> Result:
        """Return the result in the program's own units."""
        objective = None if scaled.objective is None else self.cost(scaled.objective)
        x = None if scaled.x is None else self.x(scaled.x)
        return replace(scaled, objective=objective, x=x, bound=self.cost(scaled.bound))

    def cost(self, scaled: float) -> float:
        """Return a value of the objective, or a bound on it, before scaling."""
        return float(np.ldexp(scaled, -self.objective))


def scaled(program: Program) -> Scaled:
    """Scale a program. A limit that exceeds the range of numbers after scaling is dropped."""
    with np.errstate(over="ignore"):
        return _scaled(program)


def _scaled(program: Program) -> Scaled:
    values, cost = (np.clip(each, -LARGEST, LARGEST) for each in (program.values, program.cost))
    count = len(program.row_lower)
    row = np.repeat(np.arange(count), np.diff(program.start))
    whole = program.integer[program.columns]
    among_whole, among_all = (_largest(each, row, count) for each in (np.where(whole, values, 0.0), values))
    rows = _far(np.where(among_whole > np.ldexp(among_all, -MOST), among_whole, among_all))
    values = np.ldexp(values, rows[row])
    columns = _far(_largest(values, program.columns, len(cost)))
    # An integer keeps its unit: scaled, it would not be whole.
    columns = np.where(program.integer, 0, np.clip(columns, -MOST, MOST))
    values = np.ldexp(values, columns[program.columns])
    # Columns have changed the rows: what is far from 1 now is scaled once more.
    rescaled = _far(_largest(values, row, count))
    rows, values = rows + rescaled, np.ldexp(values, rescaled[row])
    # x_j = 2^columns_j · x'_j: what multiplies it grows as its limits shrink.
    cost = np.ldexp(cost, columns)
    objective = _cost_exponent(cost, program)
    if not (rows.any() or columns.any() or objective or np.isinf(program.values).any()):
        return Scaled(program, columns, 0)
    changed = replace(
        program,
        offset=float(np.ldexp(program.offset, objective)),
        cost=np.ldexp(cost, objective),
        values=values,
        lower=np.ldexp(program.lower, -columns),
        upper=np.ldexp(program.upper, -columns),
        row_lower=np.ldexp(program.row_lower, rows),
        row_upper=np.ldexp(program.row_upper, rows),
    )
    return Scaled(changed, columns, objective)


def _cost_exponent(cost: Floats, program: Program) -> int:
    if not program.integer.any():
        return int(_far(np.abs(cost).max(initial=0.0, keepdims=True))[0])
    largest = float(np.abs(cost).max(initial=0.0))
    if largest == 0.0:
        return 0
    # divided first: the sum itself may be beyond the range of numbers
    bits = int(np.frexp(largest)[1])
    return COST_BITS - bits - int(np.frexp(np.abs(np.ldexp(cost, -bits)).sum())[1])


def _largest(values: Floats, at: NDArray[np.integer], count: int) -> Floats:
    largest = np.zeros(count)
    np.maximum.at(largest, at, np.abs(values))
    return largest


def _far(largest: Floats) -> Exponents:
    """Return the exponents that bring these to between 1/2 and 1; 0 where they are 0 or not far from it."""
    exponents = np.frexp(largest)[1].astype(np.int64)
    return np.where(np.abs(exponents) > FAR, -exponents, 0)
