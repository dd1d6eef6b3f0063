"""Linear expressions of a program's columns, and constraints between them, written as in the papers.

    model.add(held + rerun >= made - used_before)

An expression is a constant and a tuple of (column, coefficient) terms. Adding two expressions joins the
tuples; terms of the same column are summed once, when the model writes the row. Long sums are made by
`total` or from their terms: chains of + copy the terms at every +.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from math import inf
from typing import NamedTuple

from ...graphs.arrays import Floats

Term = tuple[int, float]
"""A column and its coefficient."""


class Linear:
    """A linear expression: constant + Σ coefficient · column. It never changes."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: Iterable[Term] = (), constant: float = 0.0) -> None:
        """Make an expression.

        terms: may name a column several times.
        """
        self.terms, self.constant = tuple(terms), constant

    def __add__(self, other: Linear | float) -> Linear:
        if isinstance(other, Linear):
            return Linear(self.terms + other.terms, self.constant + other.constant)
        return Linear(self.terms, self.constant + other)

    __radd__ = __add__

    def __neg__(self) -> Linear:
        return self * -1.0

    def __sub__(self, other: Linear | float) -> Linear:
        return self + -other

    def __rsub__(self, other: float) -> Linear:
        return -self + other

    def __mul__(self, factor: float) -> Linear:
        return Linear([(column, value * factor) for column, value in self.terms], self.constant * factor)

    __rmul__ = __mul__

    def __le__(self, other: Linear | float) -> Constraint:
        return Constraint(self, _expression(other), upper=0.0)

    def __ge__(self, other: Linear | float) -> Constraint:
        return Constraint(self, _expression(other), lower=0.0)

    def between(self, lower: float, upper: float) -> Constraint:
        """Return the constraint that the value lies within these limits."""
        return Constraint(self, ZERO, lower, upper)

    def equals(self, other: Linear | float) -> Constraint:
        """Return the constraint that both sides are equal."""
        return Constraint(self, _expression(other), 0.0, 0.0)

    @property
    def column(self) -> int:
        """The number of the column of a single variable."""
        ((column, _one),) = self.terms
        return column

    def value(self, x: Floats) -> float:
        """Return the value at a program's answer.

        x: per column, its value.
        """
        return self.constant + sum(value * float(x[column]) for column, value in self.terms)


class Constraint(NamedTuple):
    """The constraint lower ≤ left − right ≤ upper."""

    left: Linear
    right: Linear
    lower: float = -inf
    upper: float = inf


def _expression(side: Linear | float) -> Linear:
    return side if isinstance(side, Linear) else Linear((), side)


def column_sum(*columns: int | None) -> Linear:
    """Return the sum of some columns; None stands for 0."""
    return Linear([(column, 1.0) for column in columns if column is not None])


def total(parts: Iterable[Linear]) -> Linear:
    """Return the sum of expressions, in time linear in their terms."""
    parts = list(parts)
    return Linear(chain.from_iterable(part.terms for part in parts), sum(part.constant for part in parts))


ZERO = Linear()
ONE = Linear((), 1.0)
