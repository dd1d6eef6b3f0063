"""What is left of the budget, spent: repeats are dropped from a sequence while it stays within.

A run whose operation has run before may be left out: what it made is then kept since its last use, and its
own inputs are needed for less long. So the bytes of what it made, on top of what is there from that last use
to the repeat, bound the memory without it. The repeat that saves most seconds for its bytes and moments goes
first; then everything is counted anew. Repeats that make a part of a sum stay. O(runs) for each one dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..graphs.graph import Graph
from ..planner.sequence import Run, prune
from .stages import ways_of


def without_repeats(graph: Graph, runs: Sequence[Run], limit: int, proceed: Callable[[], bool]) -> list[Run]:
    """limit: device bytes. Ends when told not to `proceed`, or when no repeat can go."""
    runs = prune(graph, runs)
    while proceed():
        place = max(_droppable(graph, runs, limit), default=(0.0, -1))[1]
        if place < 0:
            break
        runs = prune(graph, [*runs[:place], *runs[place + 1 :]])
    return runs


def _droppable(graph: Graph, runs: Sequence[Run], limit: int) -> Iterator[tuple[float, int]]:
    """(seconds saved per byte and moment, place) of the repeats that the limit can do without."""
    lives = _Lives(graph, runs)
    sizes = graph.tensors.bytes
    for place, gaps in lives.gaps.items():
        since = min((since for _x, since in gaps), default=place)
        more = sum(int(sizes[x]) for x, _since in gaps)
        if since >= 0 and int(lives.bytes[since : place + 1].max()) + more <= limit:
            cost = sum(int(sizes[x]) * (place - since) for x, since in gaps)
            yield lives.ways[place].time / max(cost, 1), place


class _Lives:
    """bytes: what is on the device at each run. ways: how each runs. gaps: per repeat, what it makes that is
    read before it is made again: (tensor, the end of its life before; −1 where it had none)."""

    def __init__(self, graph: Graph, runs: Sequence[Run]) -> None:
        self.ways = [next(w for w in ways_of(graph, o) if w.mode == mode) for o, mode in runs]
        self.gaps: dict[int, list[tuple[int, int]]] = {}
        self.bytes = self._follow(graph, runs)

    def _follow(self, graph: Graph, runs: Sequence[Run]) -> NDArray[np.int64]:
        last = len(runs) - 1
        born: dict[int, int] = {}
        ends: dict[int, int] = {}
        lives: list[tuple[int, int, int]] = []
        before: dict[tuple[int, int], int] = {}
        sums = {x for x, count in enumerate(graph.producers.counts().tolist()) if count > 1}
        for place, (operation, _mode) in enumerate(runs):
            ends.update((x, place) for x in (*graph.read_lists[operation], *graph.mutate_lists[operation]))
            for x in self.ways[place].writes:
                if x in born and x not in sums:
                    lives.append((x, born[x], ends[x]))
                    before[x, place] = ends[x]
                if x not in born or x not in sums:
                    born[x] = place
                ends[x] = place
        ends.update(dict.fromkeys(graph.results, last))
        lives += [(x, place, ends[x]) for x, place in born.items()]
        ran: set[int] = set()
        for place, (operation, _mode) in enumerate(runs):
            if operation in ran and not sums.intersection(self.ways[place].writes):
                self.gaps[place] = []
            ran.add(operation)
        for x, first, end in lives:
            if first in self.gaps and end > first:
                self.gaps[first].append((x, before.get((x, first), -1)))
        tensors, firsts, stops = np.array(lives, np.int64).reshape(-1, 3).T
        change = np.zeros(len(runs) + 1, np.int64)
        np.add.at(change, firsts, graph.tensors.bytes[tensors])
        np.add.at(change, stops + 1, -graph.tensors.bytes[tensors])
        workspace = np.array([way.workspace for way in self.ways], np.int64)
        return np.cumsum(change[:-1]) + workspace + int(graph.tensors.bytes[graph.resident].sum())
