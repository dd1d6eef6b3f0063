"""Seconds as whole numbers, exactly if their common divisor allows it.

Separate from model.py, since that loads OR-tools (worker.py says why that matters).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from math import gcd, lcm

MOST = 2**31
"""The largest sum of times that is kept exact."""


def whole_times(seconds: Sequence[float]) -> tuple[list[int], float]:
    """Return the times in some unit, and that unit in seconds.

    They are rounded down if they have no common unit that is coarse enough, so that a bound on their sum
    stays one.
    """
    # From the shortest decimal: 0.1 is 1/10, not the binary fraction, whose denominator is 2⁵⁵.
    exact = [Fraction(repr(second)) for second in seconds]
    scale = reduce(lcm, (time.denominator for time in exact), 1)
    whole = [int(time * scale) for time in exact]
    divisor = reduce(gcd, whole, 0) or 1
    total = sum(whole) // divisor
    if total <= MOST:
        return [time // divisor for time in whole], divisor / scale
    unit = sum(exact) / MOST
    return [int(time / unit) for time in exact], float(unit)
