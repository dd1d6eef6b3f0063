"""Smaller cases with the same fault: delta debugging, greedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, TypeVar

from .area import Area, Fault

SECONDS = 60.0

T = TypeVar("T")


def shrunk(area: Area, case: Any, fault: Fault, seconds: float = SECONDS) -> tuple[Any, Fault]:
    """The smallest case found with a fault of that kind, and its fault."""
    end = monotonic() + seconds
    while True:
        for smaller in area.smaller(case):
            found = next((one for one in area.repeat(smaller, fault) if one.kind == fault.kind), None)
            if found is not None:
                case, fault = smaller, found
                break
            if monotonic() > end:
                return case, fault
        else:
            return case, fault


def without(items: Sequence[T]) -> Iterator[list[T]]:
    """The list without a part of it: without all, the halves, the quarters, at last single items."""
    size = len(items)
    while size:
        for start in range(0, len(items), size):
            yield [*items[:start], *items[start + size :]]
        size //= 2
