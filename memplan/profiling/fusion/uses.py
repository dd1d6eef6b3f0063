"""The producer and the readers of each storage of a program, for compiled kernels.

A kernel of backward may recompute what forward has made element by element, so that it need not be kept:

    x = addmm(…)                 forward
    y = silu(x), z = mul(y, u)
    du = mul(dz, y)              backward: compiled with `silu(x)` folded in it reads x instead of y
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from ...program.program import Operation, Program, refs, values_read
from .fusible import is_fusible, is_view


class Fold(NamedTuple):
    """Recomputation of a storage inside a kernel of backward.

    operations: of forward, in order.
    sources: the storages that they read, without those that they make.
    """

    operations: tuple[int, ...]
    sources: frozenset[int]


Folds = Mapping[int, Mapping[int, Fold]]
"""Per operation of backward the storages that it recomputes."""


class Uses:
    """Producers and readers of each storage.

    fusible: the operations that kernels may take in.
    producer, readers, sizes: by storage.
    reads: by operation, with what is folded in it if it is compiled.
    before, later: by operation, those before and after which it must run.
    """

    def __init__(self, program: Program, folds: Folds, banned: Collection[int] = ()) -> None:
        self.program, self.folds = program, folds
        count = len(program.operations)
        self.producer = {x: i for i, operation in enumerate(program.operations) for x in operation.writes}
        self.fusible = {
            i
            for i, operation in enumerate(program.operations)
            if i not in banned and is_fusible(program, operation) and self._is_plain(operation)
        }
        self.sizes = [storage.bytes for storage in program.storages]
        self.results = frozenset(program.results)
        self.reads = [self._reads(i) for i in range(count)]
        self.readers: dict[int, list[int]] = {}
        for i, read in enumerate(self.reads):
            for x in read:
                self.readers.setdefault(x, []).append(i)
        self.before, self.later = self._order()

    def traffic(self, operation: int) -> dict[int, int]:
        """Return the bytes that the operation reads and writes, by storage."""
        touched = (*self.reads[operation], *self.program.operations[operation].writes)
        return {x: self.sizes[x] for x in touched}

    def _reads(self, operation: int) -> frozenset[int]:
        own = frozenset(self.program.operations[operation].reads)
        folds = self.folds.get(operation, {})
        return (own - folds.keys()).union(*(fold.sources for fold in folds.values()))

    def _order(self) -> tuple[list[set[int]], list[set[int]]]:
        """Return, per operation, those before and those after which it must run.

        These are producers and readers, and changes in place with all that reads on either side of them.
        """
        operations = self.program.operations
        # later[i]: those after which i must run.
        later: list[set[int]] = [set() for _ in operations]
        since: dict[int, list[int]] = {}
        changed: dict[int, int] = {}
        for i, operation in enumerate(operations):
            for x in self.reads[i] | set(operation.mutates):
                later[i].update(
                    found for found in (self.producer.get(x), changed.get(x)) if found is not None
                )
                since.setdefault(x, []).append(i)
            for x in operation.mutates:
                # A change in place comes after all uses since the change before it.
                later[i].update(before for before in since[x] if before != i)
                since[x], changed[x] = [i], i
        before: list[set[int]] = [set() for _ in operations]
        for i, found in enumerate(later):
            for j in found:
                before[j].add(i)
        return before, later

    def _is_plain(self, operation: Operation) -> bool:
        """Tell whether each storage that it makes has one value, and views of its inputs can be read
        through.
        """
        made = [self.program.values[v].storage for v in operation.call.outputs if v is not None]
        return len(made) == len(set(made)) and all(
            is_view(self.program.views[v]) for v in views_of(self.program, values_read(operation.call))
        )


def views_of(program: Program, values: Collection[int]) -> Iterator[int]:
    """Yield those of the values that are views, and the views that they are of."""
    for value in values:
        while value in program.views:
            yield value
            # A view is of one tensor.
            (value,) = refs(program.views[value].arguments)
