"""Search for the least memory with which a schedule is as fast as with more."""

from __future__ import annotations

from collections.abc import Callable

_CLOSE = 1 / 64
"""Tolerance of the search, as a share of the bytes that are enough."""


def least_room(least: int, enough: int, holds: Callable[[int], bool]) -> int:
    """Return the fewest bytes for which `holds`, or hardly more.

    least: fewer are impossible. enough: it holds.
    """
    low = least - 1
    while enough - low > max(1, enough * _CLOSE):
        middle = max((low + enough) // 2, least)
        if holds(middle):
            enough = middle
        else:
            low = middle
    return enough
