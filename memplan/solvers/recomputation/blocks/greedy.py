"""Options of a block without an integer program: keep less and less, the cheapest to recompute dropped first.

Starts from all that the backward part reads. In each step the tensor is dropped whose bytes cost the fewest
seconds, by the exact cost of what is left; the same from the other end, where the tensor is added that saves
the most seconds per byte. What is missing is recomputed right before the operation that reads it, from what
is kept and the block's input; it then stays to its last use, or, in a second option each time, only for that
operation. O(n²) options are replayed for n tensors, at most `tries` of them.

The ratio of seconds to bytes is the knapsack's; the next smaller sets come from the one before, as in
H. Kellerer, U. Pferschy, D. Pisinger, Knapsack Problems, 2004, 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from math import copysign, fsum, inf

from ....graphs.closure import closure
from ....planner.schedule.sequence import Run, in_default_mode
from ...stages.scan import scan
from .option import Option, option_of
from .placed import PlacedBlock, mean_seconds

Kept = frozenset[int]
"""Tensors kept between the two parts."""


def greedy_options(identical: Sequence[PlacedBlock], tries: int, proceed: Callable[[], bool]) -> list[Option]:
    """Find options for identical blocks; the first option keeps all. Stops once `proceed` is false.

    tries: sets to look at; 0: only the first.
    """
    block = identical[0]
    search = KeptSets(block, mean_seconds(identical))
    forward = in_default_mode(range(block.forwards))
    found: dict[Option, None] = {}
    for kept in dict.fromkeys([search.all, *(search.sets(tries, proceed) if tries else ())]):
        for at_each_use in (False, True):
            runs = search.backward(kept, at_each_use=at_each_use)
            if runs is not None:
                found[option_of(block, forward, runs)] = None
    return list(found)


class KeptSets:
    """Sets of tensors that a block may keep between its forward and its backward part.

    all: what the backward part reads of what forward makes.
    fixed: the subset that can't be recomputed.
    """

    def __init__(self, block: PlacedBlock, seconds: Sequence[float]) -> None:
        graph = block.graph
        self.block, self.seconds = block, seconds
        self.position = {o: position for position, o in enumerate(block.members)}
        self.inputs = [[x for x in graph.input_lists[o] if x in block.made] for o in block.members]
        forward = range(block.forwards)
        self.writes = [[x for x, _bit in graph.contributions(o)] for o in block.members]
        self.producers: dict[int, list[int]] = {}
        for position in forward:
            for x in self.writes[position]:
                self.producers.setdefault(x, []).append(position)
        read = {x for position in range(block.forwards, len(block.members)) for x in self.inputs[position]}
        stay = {x for x in block.after if x in block.made}
        self.all: Kept = frozenset(read | stay)
        self.once = {
            p
            for p in forward
            if not graph.operations.recompute[block.members[p]] or graph.mutate_lists[block.members[p]]
        }
        unmakable = {x for x in block.made if self.once.intersection(self.producers[x])}
        # What must exist after backward can't be dropped either: nothing would make it in time.
        self.fixed: Kept = frozenset(x for x in self.all if x in unmakable or x in stay)

    def sets(self, tries: int, proceed: Callable[[], bool]) -> Iterator[Kept]:
        """Yield sets from all to none, then from none to all."""
        for shrinking in (True, False):
            kept = self.all if shrinking else self.fixed
            # A step prices every tensor, and there are two directions: `tries` sets in all.
            steps = max(1, tries // max(1, 2 * len(self.all)))
            many = -(-len(self.all - self.fixed) // steps)
            now = self._cost(kept)
            while proceed() and (choices := kept - self.fixed if shrinking else self.all - kept):
                changes = sorted((self._ratio(now, self._cost(kept ^ {x})), x) for x in choices)
                # Removes when shrinking, adds when growing.
                kept ^= {x for _ratio, x in changes[:many]}
                now = self._cost(kept)
                yield kept

    @staticmethod
    def _ratio(old: tuple[float, int], new: tuple[float, int]) -> float:
        """Return the seconds per byte that saving less costs, or (negative) that saving more brings."""
        # From or to an impossible set: first when that becomes possible, last when it stops being so.
        if inf in (old[0], new[0]):
            return inf if new[0] == inf else -inf
        seconds, saved = new[0] - old[0], abs(new[1] - old[1])
        return seconds / saved if saved else copysign(inf, seconds) if seconds else 0.0

    def _cost(self, kept: Kept) -> tuple[float, int]:
        """Return the seconds of the backward part, ∞ if it is impossible, and the bytes saved."""
        runs = self.backward(kept)
        if runs is None:
            return inf, 0
        block = self.block
        once = frozenset(block.members[block.forwards :])
        scanned = scan(block.graph, block.runs(runs), block.after, block.given, once)
        saved = sum(block.graph.tensors.bytes.item(x) for x in scanned.needed if x in block.made)
        return fsum(self.seconds[self.position[o]] for o, _mode in scanned.runs), saved

    def backward(self, kept: AbstractSet[int], *, at_each_use: bool = False) -> list[Run] | None:
        """Return the backward part with its recomputations, kept to their last use or repeated at each use.

        None if that is impossible.
        """
        block, graph = self.block, self.block.graph
        runs: list[Run] = []
        there, changed = set(kept), set[int]()
        for position in range(block.forwards, len(block.members)):
            if at_each_use:
                there = set(kept)
            missing = self._missing(self.inputs[position], there)
            # A recomputation after a change in place would read the new version.
            if missing is None or any(
                not changed.isdisjoint(graph.read_lists[block.members[p]]) for p in missing
            ):
                return None
            runs += in_default_mode([*missing, position])
            # All that they write, also what this operation doesn't read: a later one may.
            there.update(x for p in missing for x in self.writes[p])
            changed.update(graph.mutate_lists[block.members[position]])
        return runs

    def _missing(self, tensors: Sequence[int], there: AbstractSet[int]) -> list[int] | None:
        def producers(reads: Sequence[int]) -> Iterator[int]:
            return (position for x in reads if x not in there for position in self.producers[x])

        missing = closure(producers(tensors), lambda position: producers(self.inputs[position]))
        return sorted(missing) if missing.isdisjoint(self.once) else None
