"""GO-MemFerry: which gradients stay on the device, where `reserve` of their bytes may.

A knapsack, solved exactly by the paper's dynamic program D[i, j] = max(D[i-1, j], D[i-1, j - s_i] + gain_i):
sizes are whole units of memory, and a gain (T_GBP - T_CBP, the seconds that a kept gradient saves) may be
negative; such a gradient is never kept. O(n · units).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np


def kept_gradients(sizes: Sequence[int], gains: Sequence[float], room: int, units: int = 2000) -> list[int]:
    """Indices of the gradients to keep, of at most `room` bytes together.

    units: the room in at most so many; sizes are exact where they have a divisor that large, else rounded up.
    """
    if room <= 0 or not sizes:
        return []
    unit = max(gcd(*sizes), -(-room // units), 1)
    whole = room // unit
    table = np.zeros((len(sizes) + 1, whole + 1))
    for row, (size, gain) in enumerate(zip(sizes, gains, strict=True), start=1):
        table[row] = table[row - 1]
        slots = -(-size // unit)
        if slots <= whole:
            with_it = table[row - 1, : whole + 1 - slots] + gain
            table[row, slots:] = np.maximum(table[row, slots:], with_it)
    kept: list[int] = []
    left = whole
    for row in range(len(sizes), 0, -1):
        if table[row, left] > table[row - 1, left]:
            kept.append(row - 1)
            left -= -(-sizes[row - 1] // unit)
    return kept[::-1]
