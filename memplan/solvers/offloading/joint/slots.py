"""Slots for recomputation: runs that are absent at first, before uses that come long after the last one.

A tensor that waits long for a use could be freed, and recomputed before it, with what that needs. Three
answers to "what is missing then" give the slots: that tensor alone; all that waits but what crosses from
block to block; and all. So a tensor has a slot at its own use, one where its block is recomputed, and one
where everything is; the search decides which are taken (recompute_moves.py). Linear in runs and uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain

import numpy as np

from ....graphs.graph import Graph
from ....planner.schedule.schedule import DEFAULT_MODE
from ....planner.schedule.sequence import Run
from .drops import Drops
from .timeline import ABSENT

_LONG = 8
"""Runs from which on a gap is long."""


class Slots:
    """A sequence of runs with slots for recomputation.

    runs: the given ones and ABSENT ones among them. places: positions of the given ones there.
    choices: sets of tensors to drop that must have slots of their own, in addition to those of all.
    """

    def __init__(self, drops: Drops, runs: Sequence[Run], choices: Iterable[AbstractSet[int]] = ()) -> None:
        self._drops, self._given = drops, runs
        slots: list[set[int]] = [set() for _ in runs]
        waits = _waits(drops, runs)
        for x, (_after, before) in waits.items():
            slots[before].add(drops.producers[x])
        made = [self._again(dropped) for dropped in choices]
        leaving = (drops.producers.keys() - drops.crossing, drops.producers.keys())
        made += [_recomputed_for(drops, runs, self._at_once(tensors, waits)) for tensors in leaving]
        for position, producer in chain(*made):
            slots[position].add(producer)
        until = _until(drops.graph, runs)
        self.runs: list[Run] = []
        self.places: list[int] = []
        self._of: dict[int, list[tuple[int, int]]] = {}
        for position, run in enumerate(runs):
            for producer in sorted(slots[position]):
                # After a change in place of what it touches, the operation would compute something else.
                if position <= until[producer]:
                    self._of.setdefault(producer, []).append((position, len(self.runs)))
                    self.runs.append((producer, ABSENT))
            self.places.append(len(self.runs))
            self.runs.append(run)

    def recomputed(self, dropped: AbstractSet[int]) -> list[int]:
        """Return the ABSENT runs that take place if these tensors are dropped: where they are needed, or
        before."""
        found = [
            max((slot for slot in self._of.get(producer, ()) if slot[0] <= position), default=None)
            for position, producer in self._again(dropped)
        ]
        return [slot[1] for slot in found if slot]

    def _again(self, dropped: AbstractSet[int]) -> Iterator[tuple[int, int]]:
        """Yield pairs (position, producer): what is recomputed if these tensors are freed at the boundary.

        Tensors that only they need are freed with them.
        """
        boundary = [position for position, run in enumerate(self._given) if run[0] == self._drops.boundary]
        going = dict.fromkeys(boundary[:1], dropped | self._drops.passing)
        return _recomputed_for(self._drops, self._given, going)

    def _at_once(
        self, tensors: AbstractSet[int], waits: Mapping[int, tuple[int, int]]
    ) -> Mapping[int, AbstractSet[int]]:
        """Return the tensors to free before each run if each goes once its longest wait begins, or after its
        last use."""
        graph, last = self._drops.graph, dict[int, int]()
        for position, (operation, _mode) in enumerate(self._given):
            touched = (*graph.read_lists[operation], *graph.operations.writes[operation].tolist())
            last.update(dict.fromkeys(touched, position))
        going: dict[int, set[int]] = {}
        for x in tensors & last.keys():
            going.setdefault(waits[x][0] + 1 if x in waits else last[x] + 1, set()).add(x)
        return going


def _waits(drops: Drops, runs: Sequence[Run]) -> dict[int, tuple[int, int]]:
    """Return the longest wait of each tensor that could be recomputed and waits long: the runs at its
    ends."""
    graph, longest, last = drops.graph, dict[int, tuple[int, int]](), dict[int, int]()
    for position, (operation, _mode) in enumerate(runs):
        read = graph.read_lists[operation]
        for x in read:
            if x in drops.producers and x in last and position - last[x] >= _LONG:
                before, after = longest.get(x, (0, 0))
                # One slot per tensor of its own, at its longest wait; shorter ones have those of blocks and
                # of all.
                if position - last[x] > after - before:
                    longest[x] = (last[x], position)
        last.update(dict.fromkeys((*read, *graph.operations.writes[operation].tolist()), position))
    return longest


def _recomputed_for(
    drops: Drops, runs: Sequence[Run], going: Mapping[int, AbstractSet[int]]
) -> Iterator[tuple[int, int]]:
    """Yield pairs (position, producer): the operations to recompute before each run.

    going: per position the tensors that are freed before that run; they stay once they are recomputed.
    """
    missing = set[int]()
    for position, (operation, _mode) in enumerate(runs):
        missing |= going.get(position, set())
        # Afterwards they are resident, and stay for the runs that follow (`needed` takes them out of
        # `missing`).
        for producer in drops.needed(operation, missing):
            yield position, producer
        missing.difference_update(drops.graph.operations.writes[operation].tolist())


def _until(graph: Graph, runs: Sequence[Run]) -> list[int]:
    """Return per operation the position of the first later run that changes what it touches.

    No other run of the operation may come after that.
    """
    # Backwards, so that the first run of each operation is left.
    first = np.full(len(graph.operations), len(runs))
    for position in range(len(runs) - 1, -1, -1):
        first[runs[position][0]] = position
    until = [len(runs)] * len(graph.operations)
    for operation in range(len(graph.operations)):
        touched = {*graph.read_lists[operation], *graph.operations.writes[operation].tolist()}
        changes = [int(first[m]) for x in touched for m in graph.mutators[x].tolist() if m > operation]
        until[operation] = min(changes, default=len(runs))
    return until


def optional(graph: Graph, runs: Sequence[Run]) -> list[int]:
    """Return the positions of runs that may take place or be absent.

    These are all but the first of each operation that takes place, if nothing changes its results in
    place.
    """
    done, found = set[int](), list[int]()
    for position, (operation, mode) in enumerate(runs):
        if len(graph.operations.mutates[operation]):
            continue
        changed = any(len(graph.mutators[x]) for x in graph.operations.writes[operation].tolist())
        # The first run that takes place must stay: every operation runs.
        if mode == ABSENT or (operation in done and mode == DEFAULT_MODE and not changed):
            found.append(position)
        else:
            done.add(operation)
    return found
