"""A mixed-integer linear program as columns and sparse rows.

    minimise  offset + Σ cost · x   where   row_lower ≤ A x ≤ row_upper,  lower ≤ x ≤ upper,  some x integer

Rows are appended to flat arrays (a million entries a second); no object stands for a variable.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Floats

Entries = Iterable[tuple[int, float]]
"""The nonzeros of a row: (column, coefficient), each column once."""


class Model:
    """A program while it is written.

    tolerance: by how much an answer may leave a row or an integer.
    """

    def __init__(self, offset: float = 0.0, tolerance: float = 1e-6) -> None:
        self.offset, self.tolerance = offset, tolerance
        self._cost, self._lower, self._upper = array("d"), array("d"), array("d")
        self._integer = bytearray()
        self._start, self._columns, self._values = array("q", [0]), array("i"), array("d")
        self._row_lower, self._row_upper = array("d"), array("d")

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

    def row(self, entries: Entries, lower: float = -inf, upper: float = inf) -> None:
        """Add the row lower ≤ Σ coefficient · column ≤ upper."""
        for column, value in entries:
            self._columns.append(column)
            self._values.append(value)
        self._start.append(len(self._columns))
        self._row_lower.append(lower)
        self._row_upper.append(upper)

    def upper(self, column: int) -> float:
        return self._upper[column]

    @property
    def columns(self) -> int:
        """Variables so far."""
        return len(self._cost)

    @property
    def entries(self) -> int:
        """Nonzeros so far."""
        return len(self._columns)

    def program(self) -> Program:
        def floats(values: array[float]) -> Floats:
            return np.array(values, np.float64)

        return Program(
            offset=self.offset,
            tolerance=self.tolerance,
            cost=floats(self._cost),
            lower=floats(self._lower),
            upper=floats(self._upper),
            integer=np.frombuffer(bytes(self._integer), np.bool_),
            start=np.array(self._start, np.int64),
            columns=np.array(self._columns, np.int32),
            values=floats(self._values),
            row_lower=floats(self._row_lower),
            row_upper=floats(self._row_upper),
        )


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
    def size(self) -> str:
        return f"{len(self.cost):,} variables and {len(self.row_lower):,} constraints"

    def objective(self, x: Floats) -> float:
        return self.offset + float(self.cost @ x)

    def activity(self, x: Floats) -> Floats:
        """Return A x."""
        rows = np.repeat(np.arange(len(self.row_lower)), np.diff(self.start))
        parts = self.values * x[self.columns]
        return np.bincount(rows, parts, minlength=len(self.row_lower)).astype(np.float64)
