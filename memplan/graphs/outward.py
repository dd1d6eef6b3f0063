"""Rounding toward one side: floats that are surely not above an exact value.

A lower bound must not exceed what it bounds by even one unit in the last place, so it is rounded down, never
to the nearest. Arithmetic on floats rounds to the nearest; here the result is compared with the exact value.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import fsum, inf, isfinite, nextafter


def float_below(value: Fraction) -> float:
    """Return the largest float that is not above the value."""
    try:
        near = float(value)
    except OverflowError:
        return nextafter(inf, 0.0) if value > 0 else -inf
    # float() rounds a fraction to the nearest, so it is at most one step too high.
    return near if Fraction(near) <= value else nextafter(near, -inf)


def sum_below(values: Iterable[float]) -> float:
    """Return the largest float that is not above the exact sum; ±∞ if a term is infinite."""
    terms = [*values]
    if not all(map(isfinite, terms)):
        return sum(terms)
    total = fsum(terms)
    # fsum rounds to the nearest: the sign of what is left says to which side
    return total if fsum([*terms, -total]) >= 0.0 else nextafter(total, -inf)


def product_below(one: float, other: float) -> float:
    """Return the largest float that is not above the exact product; ±∞ if a factor is infinite."""
    if not (isfinite(one) and isfinite(other)):
        return one * other
    return float_below(Fraction(one) * Fraction(other))
