"""Subsets whose sizes come close to a target: the special knapsack problem of Offmate's SELECT.

Reachable sums are grown item by item, each with one subset that makes it: exact while there are at most MOST
sums, then thinned to one a cell of total / MOST bytes, so the error stays below n · total / MOST.
Reference: H. Kellerer, U. Pferschy, D. Pisinger, Knapsack Problems, 2004, chapter 4.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST = 20_000


def select(sizes: Sequence[int], target: float) -> list[int]:
    """Return the indices of a subset of at least `target`, as little above as possible; all if too small."""
    if target <= 0:
        return []
    total = sum(sizes)
    if target >= total:
        return list(range(len(sizes)))
    sums = _sums(sizes, total)
    return _members(sums[min(value for value in sums if value >= target)])


def nearest(sizes: Sequence[int], target: float) -> list[int]:
    """Return the indices of a subset as near to `target` as possible."""
    sums = _sums(sizes, sum(sizes))
    return _members(sums[min(sums, key=lambda value: (abs(value - target), value))])


def _sums(sizes: Sequence[int], total: int) -> dict[int, int]:
    """Return the reachable sums, each with a subset as bits."""
    sums = {0: 0}
    for index, size in enumerate(sizes):
        grown = {value + size: bits | 1 << index for value, bits in sums.items()}
        # Of two subsets with one sum the earlier stays.
        sums = grown | sums
        if len(sums) > MOST:
            cell = total / MOST
            # One sum a cell, the largest; 0 and the largest of all always stay.
            thinned: dict[int, int] = {int(value / cell): value for value in sorted(sums)}
            sums = {value: sums[value] for value in (0, *thinned.values(), max(sums))}
    return sums


def _members(bits: int) -> list[int]:
    return [index for index in range(bits.bit_length()) if bits >> index & 1]
