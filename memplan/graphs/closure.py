"""The operations that must run for others, by transitive closure of what each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def closure(operations: Iterable[int], before: Callable[[int], Iterable[int]]) -> set[int]:
    """Return the operations and all that must run for them.

    before: per operation, those that it waits for and whose results are not there.
    Linear in the operations found and what they wait for. An exception raised by `before` is passed on.
    """
    found = set(operations)
    waiting = list(found)
    while waiting:
        new = [other for other in before(waiting.pop()) if other not in found]
        found.update(new)
        waiting += new
    return found
