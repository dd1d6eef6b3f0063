"""Which activations are made again: a set of tensors to drop when forward ends, and the runs that follow.

A dropped tensor is made again right before the first operation of the backward part that needs it, with what
that needs and is dropped too; from then on it stays. So what crosses from block to block is the last to drop
(graphs/structure/chain.py): without it all blocks would be made again at once, and stay. Updates move behind
the last run that touches what they change, unless somebody behind them in the file depends on them. Linear in
the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

import numpy as np

from ....graphs.graph import Graph, Phase
from ....graphs.structure.chain import chain_of
from ....planner.schedule.schedule import PLAIN
from ....planner.schedule.sequence import Run, prune


class Drops:
    """boundary: the first operation that is not forward. makers: per tensor that may be dropped the operation
    that makes it. movable: updates that may run as soon as what they touch is done with."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        behind = np.flatnonzero(graph.operations.phase != Phase.FORWARD)
        self.boundary = int(behind[0]) if len(behind) else len(graph.operations)
        self.movable = _movable(graph)
        results, resident = set(graph.results), graph.resident
        changed = graph.mutators.counts() > 0
        self.makers: dict[int, int] = {}
        for x, producers in enumerate(graph.producers.lists()):
            if len(producers) != 1 or x in results or resident[x] or changed[x]:
                continue
            maker = producers[0]
            if maker < self.boundary and self._recomputable(maker):
                self.makers[x] = maker

    def _recomputable(self, operation: int) -> bool:
        """It may run a second time: nothing that it touches is changed in place by then."""
        graph = self.graph
        touched = {*graph.read_lists[operation], *graph.operations.writes[operation].tolist()}
        changes = {change for x in touched for change in graph.mutators[x].tolist() if change > operation}
        once = graph.mutate_lists[operation] or not graph.operations.recompute[operation]
        return not once and changes <= self.movable

    @cached_property
    def passing(self) -> frozenset[int]:
        """What may be dropped and nobody needs in the backward part, unless for a dropped tensor."""
        last = self._last_readers
        return frozenset(x for x in self.makers if last[x] < self.boundary and x not in self._crossing)

    @cached_property
    def saved(self) -> list[int]:
        """What may be dropped and is needed in the backward part: inside blocks first, by price."""
        graph, last = self.graph, self._last_readers
        across = [x for x in self.makers if last[x] >= self.boundary and graph.tensors.bytes[x] > 0]
        return sorted(across, key=lambda x: (x in self._crossing, self.price(x), x))

    def price(self, x: int) -> float:
        """Seconds per byte of making it again from what makes it."""
        return float(self.graph.repeat_seconds[self.makers[x]]) / float(self.graph.tensors.bytes[x])

    @cached_property
    def _crossing(self) -> frozenset[int]:
        chain = chain_of(self.graph)
        return chain.shared | {block.output for block in chain.blocks if block.output is not None}

    @cached_property
    def _last_readers(self) -> list[int]:
        return [max(readers, default=-1) for readers in self.graph.consumers.lists()]

    def runs(self, dropped: AbstractSet[int], modes: Sequence[int]) -> list[Run]:
        """The sequence where these are made again. modes: per operation the mode of its first run."""
        graph = self.graph
        missing = set(self.passing) | set(dropped)
        order = list(range(self.boundary))
        recomputed = [False] * len(order)
        updates: list[int] = []
        for operation in range(self.boundary, len(graph.operations)):
            if operation in self.movable:
                updates.append(operation)
                continue
            for maker in self._needed(operation, missing):
                order.append(maker)
                recomputed.append(True)
            order.append(operation)
            recomputed.append(False)
        runs = [(o, PLAIN if repeat else modes[o]) for o, repeat in zip(order, recomputed, strict=True)]
        return prune(graph, self._with_updates(runs, updates, modes))

    def _needed(self, operation: int, missing: set[int]) -> Iterator[int]:
        """What must run again before an operation, in order; what that makes is missing no longer."""
        stack = [(operation, iter(self.graph.read_lists[operation]))]
        while stack:
            reader, rest = stack[-1]
            x = next((x for x in rest if x in missing), None)
            if x is not None:
                maker = self.makers[x]
                missing.discard(x)
                stack.append((maker, iter(self.graph.read_lists[maker])))
                continue
            stack.pop()
            if stack:
                missing.difference_update(self.graph.operations.writes[reader].tolist())
                yield reader

    def _with_updates(self, runs: list[Run], updates: list[int], modes: Sequence[int]) -> list[Run]:
        """Each behind the last run that touches what it changes or makes what it reads."""
        graph = self.graph
        last = [-1] * len(graph.tensors)
        for position, (operation, mode) in enumerate(runs):
            for x in graph.input_lists[operation]:
                last[x] = position
            for x, _bit in graph.contributions(operation, mode):
                last[x] = position
        behind: dict[int, list[Run]] = {}
        for update in updates:
            touched = graph.input_lists[update]
            position = max((last[x] for x in touched), default=len(runs) - 1)
            behind.setdefault(position, []).append((update, modes[update]))
        first = behind.get(-1, [])
        return first + [
            each for position, run in enumerate(runs) for each in (run, *behind.get(position, ()))
        ]


def _movable(graph: Graph) -> frozenset[int]:
    """The updates that nobody behind them in the file depends on, nor changes what they read."""
    updates = np.flatnonzero(graph.operations.phase == Phase.UPDATE).tolist()
    users, mutators = graph.consumers, graph.mutators

    def last(x: int, changes_only: bool) -> int:
        rows = (mutators[x],) if changes_only else (mutators[x], users[x], graph.producers[x])
        return max((int(row[-1]) for row in rows if len(row)), default=-1)

    movable = set[int]()
    for update in updates:
        made = [*graph.mutate_lists[update], *graph.operations.writes[update].tolist()]
        alone = all(last(x, False) <= update for x in made)
        unchanged = all(last(x, True) <= update for x in graph.read_lists[update])
        if alone and unchanged and not graph.operations.random[update]:
            movable.add(update)
    return frozenset(movable)
