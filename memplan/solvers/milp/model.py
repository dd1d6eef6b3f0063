"""A mixed-integer linear program as columns and sparse rows.

    minimise  offset + Σ cost · x   where   row_lower ≤ A x ≤ row_upper,  lower ≤ x ≤ upper,  some x integer

Columns and rows are appended to flat arrays (a million entries per second). A column is a number; expressions
of columns (linear.py) are made where they are needed, and dense rows are written straight from their terms.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Floats
from .linear import Constraint, Linear, Term


class Model:
    """A program while it is written.

    tolerance: by how much an answer may leave a row or an integer.
    negligible: coefficients of rows that are not above this are left out; solvers drop tiny ones anyway.
    """

    def __init__(self, offset: float = 0.0, tolerance: float = 1e-6, negligible: float = 0.0) -> None:
        self.offset, self.tolerance, self.negligible = offset, tolerance, negligible
        self._cost, self._lower, self._upper = array("d"), array("d"), array("d")
        self._integer = bytearray()
        self._start, self._columns, self._values = array("q", [0]), array("i"), array("d")
        self._row_lower, self._row_upper = array("d"), array("d")
        self._unless_implied = bytearray()

    def column(
        self, lower: float = 0.0, upper: float = 1.0, *, cost: float = 0.0, integer: bool = False
    ) -> int:
        """Add a variable and return its number."""
        self._cost.append(cost)
        self._lower.append(lower)
        self._upper.append(upper)
        self._integer.append(integer)
        return len(self._cost) - 1

    def binary(self, *, cost: float = 0.0) -> int:
        return self.column(cost=cost, integer=True)

    def variable(
        self, lower: float = 0.0, upper: float = 1.0, *, cost: float = 0.0, integer: bool = False
    ) -> Linear:
        """Add a variable and return it as an expression."""
        return Linear([(self.column(lower, upper, cost=cost, integer=integer), 1.0)])

    def add(self, constraint: Constraint, *, unless_implied: bool = False) -> None:
        """Add a constraint as a row.

        unless_implied: leave it out if the columns' limits imply it.
        """
        left, right, lower, upper = constraint
        for column, value in left.terms:
            self._columns.append(column)
            self._values.append(value)
        for column, value in right.terms:
            self._columns.append(column)
            self._values.append(-value)
        # Constants move into the limits: a row has terms only.
        constant = right.constant - left.constant
        self._close_row(lower + constant, upper + constant, unless_implied)

    def row(self, entries: Iterable[Term], lower: float = -inf, upper: float = inf) -> None:
        """Add the row lower ≤ Σ coefficient · column ≤ upper; entries name each column once."""
        for column, value in entries:
            self._columns.append(column)
            self._values.append(value)
        self._close_row(lower, upper, False)

    def _close_row(self, lower: float, upper: float, unless_implied: bool) -> None:
        self._start.append(len(self._columns))
        self._row_lower.append(lower)
        self._row_upper.append(upper)
        self._unless_implied.append(unless_implied)

    @property
    def columns(self) -> int:
        """Variables so far."""
        return len(self._cost)

    @property
    def entries(self) -> int:
        """Terms of all rows so far."""
        return len(self._columns)

    def program(self) -> Program:
        """Return the program as it is written so far."""
        program = Program(
            offset=self.offset,
            tolerance=self.tolerance,
            cost=np.array(self._cost),
            lower=np.array(self._lower),
            upper=np.array(self._upper),
            integer=np.frombuffer(bytes(self._integer), np.bool_),
            start=np.array(self._start),
            columns=np.array(self._columns),
            values=np.array(self._values),
            row_lower=np.array(self._row_lower),
            row_upper=np.array(self._row_upper),
        )
        summed = _summed(program, self.negligible)
        return _without_implied(summed, np.frombuffer(bytes(self._unless_implied), np.bool_))


@dataclass(frozen=True, eq=False)
class Program:
    """The program as arrays. Row r has the entries start[r] … start[r + 1] − 1 of columns and values."""

    offset: float
    tolerance: float
    cost: Floats
    lower: Floats
    upper: Floats
    integer: NDArray[np.bool_]
    start: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: Floats
    row_lower: Floats
    row_upper: Floats

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each entry."""
        return np.repeat(np.arange(len(self.row_lower)), np.diff(self.start))

    @property
    def size(self) -> str:
        return f"{len(self.cost):,} variables and {len(self.row_lower):,} constraints"

    def objective(self, x: Floats) -> float:
        return self.offset + float(self.cost @ x)

    def activity(self, x: Floats) -> Floats:
        """Return A x."""
        return self._row_sums(self.values * x[self.columns])

    def least_activity(self) -> Floats:
        """Return the least of A x that the columns' limits allow, per row."""
        limits = np.where(self.values > 0.0, self.lower[self.columns], self.upper[self.columns])
        return self._row_sums(self.values * limits)

    def _row_sums(self, entries: Floats) -> Floats:
        return np.bincount(self.rows, entries, minlength=len(self.row_lower)).astype(np.float64)


def _summed(program: Program, negligible: float) -> Program:
    """Sum the entries of the same row and column, and leave out those that are negligible."""
    # In 64 bits, as `rows` is: the product may exceed 2³¹.
    key = program.rows * len(program.cost) + program.columns
    order = np.argsort(key, kind="stable")
    first = np.diff(key[order], prepend=-1) > 0
    if first.all() and (np.abs(program.values) > negligible).all():
        return program
    values = np.bincount(np.cumsum(first) - 1, program.values[order])
    kept = np.abs(values) > negligible
    entries = order[first][kept]
    counts = np.bincount(program.rows[entries], minlength=len(program.row_lower))
    return replace(
        program,
        start=np.append(0, np.cumsum(counts)),
        columns=program.columns[entries],
        values=values[kept],
    )


def _without_implied(program: Program, which: NDArray[np.bool_]) -> Program:
    """Leave out those of some rows that the columns' limits imply.

    which: per row, whether it may be left out.
    """
    if not which.any():
        return program
    # The most of A x is minus the least of −A x.
    most = -replace(program, values=-program.values).least_activity()
    # An unlimited column gives ∞, or nan for ∞ − ∞, which compares as false: the row stays.
    implied = (program.least_activity() >= program.row_lower) & (most <= program.row_upper)
    rows = ~(which & implied)
    entries = rows[program.rows]
    return replace(
        program,
        start=np.append(0, np.cumsum(np.diff(program.start)[rows])),
        columns=program.columns[entries],
        values=program.values[entries],
        row_lower=program.row_lower[rows],
        row_upper=program.row_upper[rows],
    )
