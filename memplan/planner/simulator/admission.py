"""The rules about when an operation may run at all, whatever the memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from ...graphs.graph import Graph

Fault = tuple[str, str, int | None]
"""The rule broken, why ('{}' stands for the tensor), the tensor."""


class AdmissionRules:
    """The operations that have run, and so those that may run now."""

    def __init__(self, graph: Graph) -> None:
        operations = graph.operations
        self._once: list[bool] = (~operations.recompute | (operations.mutates.counts() > 0)).tolist()
        self._names = operations.name
        self._random: list[int] = operations.random.nonzero()[0].tolist()
        self._is_random: list[bool] = operations.random.tolist()
        self._sides: dict[int, list[tuple[int, int | None, int | None]]] = {}
        for operation, tensor, before, after in _sides_of_changes(graph):
            self._sides.setdefault(operation, []).append((tensor, before, after))
        self.restart()

    def restart(self) -> None:
        """Begin a new iteration: nothing has run."""
        self._ran = bytearray(len(self._once))
        self._next_random = 0

    def enter(self, operation: int) -> Fault | None:
        """Run an operation, or say why it may not run now."""
        repeated = self._ran[operation]
        if repeated and self._once[operation]:
            return "runs-once", "it runs a second time", None
        # Repeats too: they would read another version of the tensor.
        for tensor, before, after in self._sides.get(operation, ()):
            if before is not None and not self._ran[before]:
                return "side-of-change", f"{self._names[before]} has not changed {{}} yet", tensor
            if after is not None and self._ran[after]:
                return "side-of-change", f"{self._names[after]} has already changed {{}}", tensor
        if not repeated and self._is_random[operation]:
            # First draws alone: a repeat restores the generator's state of its first run.
            expected = self._random[self._next_random]
            if operation != expected:
                return "random-order", f"{self._names[expected]} draws its numbers first", None
            self._next_random += 1
        self._ran[operation] = 1
        return None

    def never_ran(self) -> int | None:
        position = self._ran.find(0)
        return None if position < 0 else position


def _sides_of_changes(graph: Graph) -> Iterator[tuple[int, int, int | None, int | None]]:
    """Yield (operation, tensor, the last change before it in traced order, the first after it).

    Changes of one tensor keep traced order among themselves, so the nearest ones are enough.
    """
    for tensor in set(graph.operations.mutates.columns.tolist()):
        changes: list[int] = graph.mutators[tensor].tolist()
        users = {*changes, *graph.consumers[tensor].tolist(), *graph.producers[tensor].tolist()}
        for operation in sorted(users):
            place = bisect_left(changes, operation)
            # A change is not on a side of itself.
            after = place + 1 if operation in changes else place
            yield (
                operation,
                tensor,
                changes[place - 1] if place else None,
                changes[after] if after < len(changes) else None,
            )
