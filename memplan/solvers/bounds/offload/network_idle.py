"""Operations around the loss, during which no weight is to be gathered and no gradient to be scattered.

Take some weights W that are updated, and the operations H that come after a use of each w, or are one, and
before its gradient dw is complete, or complete it, in every order:

    gather w ─▶ use of w ─▶ H ─▶ dw is complete ─▶ scatter dw ─▶ update of w ─▶ gather w ─▶ …

The gather that an iteration needs has ended when the first of H starts; the scatter begins when the last has
run; the next gather waits for the update. So per iteration

    T ≥ Σ_{w ∈ W} (seconds of w + seconds of dw) + Σ_{o ∈ H} seconds of o

with first runs alone, in any order, and whatever else is gathered or recomputed. It is the optimum of a chain
of equal layers in memory that suffices, for most rates of the network. Developed for memplan. O(edges) for
sets of weights as bits, then O(operations) for each of the sets with most seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....graphs.adjacency import Adjacency
from ....graphs.graph import Graph
from ....graphs.outward import sum_below
from .variants import variants_of

_SETS = 24
"""Sets of weights that are tried: those that take the network longest."""


class NetworkIdle:
    """Operations during whose first runs the network has nothing to do for weights that are updated.

    before: `predecessors` of the graph.
    used: per spread tensor the operations that use it on the device, without updates.
    seconds: of the network, per spread tensor.
    """

    def __init__(
        self,
        graph: Graph,
        before: Adjacency,
        used: Mapping[int, Sequence[int]],
        seconds: Mapping[int, float],
    ) -> None:
        pairs = _updated(graph, used)
        self._all = (1 << len(pairs)) - 1
        self._network = [seconds[w] + seconds[dw] for w, dw in pairs]
        self._compute = [_device_seconds(graph, o) for o in range(len(before))]
        self._around = _around(graph, before, used, pairs)

    @property
    def bound(self) -> float:
        """Seconds of an iteration at least: the best over the sets W of some operations."""
        sets = sorted(set(self._around) - {0}, key=lambda chosen: -sum(self._passing(chosen)))
        return max((sum_below(self._times(chosen)) for chosen in sets[:_SETS]), default=0.0)

    def seconds_of(self, t: int) -> list[float]:
        """Return the seconds of an operation if it is in H of all weights that are updated; else none."""
        return [self._compute[t]] if self._all and self._around[t] == self._all else []

    def _times(self, chosen: int) -> list[float]:
        inside = [
            seconds
            for seconds, around in zip(self._compute, self._around, strict=True)
            # In H of every chosen weight: no chosen bit is missing.
            if not chosen & ~around
        ]
        return self._passing(chosen) + inside

    def _passing(self, chosen: int) -> list[float]:
        return [seconds for k, seconds in enumerate(self._network) if chosen >> k & 1]


def _updated(graph: Graph, used: Mapping[int, Sequence[int]]) -> list[tuple[int, int]]:
    """Return the spread weights that one update changes, each with the spread gradient that it reads."""
    pairs = list[tuple[int, int]]()
    for w in used:
        changes: list[int] = graph.mutators[w].tolist()
        if graph.persistent[w] and used[w] and len(changes) == 1:
            gradients = [x for x in graph.read_lists[changes[0]] if x in used and not graph.persistent[x]]
            pairs += [(w, gradients[0])] if len(gradients) == 1 else []
    return pairs


def _around(
    graph: Graph, before: Adjacency, used: Mapping[int, Sequence[int]], pairs: Sequence[tuple[int, int]]
) -> list[int]:
    """Return per operation the pairs, as bits, for which it is in H."""
    count = len(before)
    past, coming = [0] * count, [0] * count
    for k, (w, dw) in enumerate(pairs):
        for o in used[w]:
            past[o] |= 1 << k
        for o in graph.producers[dw].tolist():
            coming[o] |= 1 << k
    earlier: list[list[int]] = [before[o].tolist() for o in range(count)]
    # Predecessors come earlier in traced order, so one pass each way closes the relation.
    for o in range(count):
        for other in earlier[o]:
            past[o] |= past[other]
    for o in reversed(range(count)):
        for other in earlier[o]:
            coming[other] |= coming[o]
    return [one & other for one, other in zip(past, coming, strict=True)]


def _device_seconds(graph: Graph, operation: int) -> float:
    """Return the fewest seconds of the compute queue."""
    # On the CPU an operation takes no time of the device's queue.
    return min(0.0 if each.on_host else each.seconds for each in variants_of(graph, operation))
