"""What must run so that something is there, with what that needs in its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def closure(operations: Iterable[int], before: Callable[[int], Iterable[int]]) -> set[int]:
    """The operations and all that must run for them. before: what one waits for that is not there.

    Linear in the operations found and what they wait for. What `before` raises ends it.
    """
    found = set(operations)
    waiting = list(found)
    while waiting:
        new = [other for other in before(waiting.pop()) if other not in found]
        found.update(new)
        waiting += new
    return found
