"""The choice of forward's tensors that backward recomputes inside its kernels, instead of keeping them.

Only tensors that are computed element by element, from tensors that backward needs anyway or that are smaller
than what is not kept for it then; and only if nothing but kernels of backward reads the tensor in backward,
so that it need not be kept at all. A norm's result is such: it follows from its input and the statistics that
are kept for backward.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...graphs.graph import Kind, Phase
from .fusible import is_pointwise
from .recomputed_norms import RECOMPUTED
from .uses import Fold, Folds, Uses

LONGEST = 16
"""Number of operations that are recomputed for one tensor at most."""
MOST_READ = 1.25
"""Largest number of bytes read to recompute a tensor, as a multiple of its own bytes. So a sum of two is not
recomputed.
"""


def folds(uses: Uses, without: Collection[int] = ()) -> Folds:
    """Choose the tensors that backward recomputes inside its kernels.

    uses: without folds.
    without: operations that nothing is folded into.
    """
    return _Choice(uses, frozenset(without)).folds()


class _Choice:
    """The state of the choice.

    candidates: the storages that may be recomputed, each with the operations that make it.
    """

    def __init__(self, uses: Uses, without: frozenset[int]) -> None:
        self._uses, self._program = uses, uses.program
        self._without = without
        self._backward = {
            x: [i for i in readers if self._phase(i) == Phase.BACKWARD] for x, readers in uses.readers.items()
        }
        self._candidates = {x for x in uses.producer if self._may_go(x)}

    def folds(self) -> Folds:
        found: dict[int, dict[int, Fold]] = {}
        for group in self._worthwhile():
            for x in group:
                fold = self._fold(x)
                assert fold is not None
                for operation in self._backward[x]:
                    found.setdefault(operation, {})[x] = fold
        return found

    def _worthwhile(self) -> Iterator[set[int]]:
        """Yield sets of storages with new sources in common, if they are larger than these."""
        parts: list[tuple[set[int], set[int]]] = []
        for x in sorted(self._candidates):
            fold = self._fold(x)
            if fold is None:
                continue
            group, new = {x}, {source for source in fold.sources if not self._kept(source)}
            # Sets with a new source in common keep it once for all of them.
            for part in [part for part in parts if part[1] & new]:
                parts.remove(part)
                group, new = group | part[0], new | part[1]
            parts.append((group, new))
        sizes = self._uses.sizes
        for group, new in parts:
            # Less, not equal: recomputation takes time.
            if sum(sizes[x] for x in new) < sum(sizes[x] for x in group):
                yield group

    def _fold(self, storage: int) -> Fold | None:
        """Return the recomputation of a storage from what is kept, or can't be recomputed."""
        operations: set[int] = set()
        sources: set[int] = set()
        open_ = [storage]
        while open_:
            x = open_.pop()
            if x != storage and (self._kept(x) or not self._can_be_made(x)):
                sources.add(x)
            elif (producer := self._uses.producer[x]) not in operations:
                operations.add(producer)
                if len(operations) > LONGEST:
                    return None
                recompute = RECOMPUTED.get(self._program.operations[producer].call.target)
                if recompute is None:
                    open_.extend(self._program.operations[producer].reads)
                else:
                    open_.extend(recompute.storages(self._program, self._program.operations[producer]))
        sizes = self._uses.sizes
        if sum(sizes[x] for x in sources) > MOST_READ * sizes[storage]:
            return None
        return Fold(tuple(sorted(operations)), frozenset(sources))

    def _may_go(self, x: int) -> bool:
        """Tell whether backward reads the storage at all, and need not have it kept."""
        readers = self._backward.get(x, ())
        return (
            bool(readers)
            and x not in self._uses.results
            and self._can_be_made(x)
            and all(i in self._uses.fusible and i not in self._without for i in readers)
        )

    def _can_be_made(self, x: int) -> bool:
        producer = self._uses.producer.get(x)
        if producer is None or producer not in self._uses.fusible or self._phase(producer) != Phase.FORWARD:
            return False
        operation = self._program.operations[producer]
        recompute = RECOMPUTED.get(operation.call.target)
        return (
            is_pointwise(operation.call)
            if recompute is None
            else recompute.makes(self._program, operation, x)
        )

    def _kept(self, x: int) -> bool:
        """Tell whether the storage is there in backward anyway."""
        if self._program.storages[x].kind <= Kind.OPTIMIZER_STATE or x in self._uses.results:
            return True
        # Candidates are read only inside kernels, which recompute them.
        return x not in self._candidates and bool(self._backward.get(x))

    def _phase(self, operation: int) -> Phase:
        return self._program.operations[operation].phase
