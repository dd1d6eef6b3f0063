"""Repeats that may be left out of a sequence: what they make again is kept instead, within the limit.

A repeat left out costs the bytes of what it makes, from their last use before it up to it. Repeats are tried
by

    seconds saved / Σ bytes · runs in the gap

the largest first; one is left out where its bytes fit beside all else throughout. What fed it alone is then
no longer needed, so the sequence is pruned and looked at anew, until nothing more fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.schedule import Verb
from ..planner.sequence import Run, prune, schedule_of
from ..planner.simulate import simulate

Gap = tuple[int, int, int]
"""A tensor is not there in the runs first … last; its bytes."""


def kept(graph: Graph, runs: Sequence[Run], limit: int, proceed: Callable[[], bool]) -> list[Run]:
    """A sequence no slower. `runs` has a peak of at most `limit` bytes, and so has the answer."""
    best = prune(graph, runs)
    curve = _curve(graph, best)
    while proceed():
        left_out = _left_out(graph, best, curve, limit)
        fewer = prune(graph, [run for place, run in enumerate(best) if place not in left_out])
        curve = _curve(graph, fewer)
        if not left_out or curve.max(initial=0) > limit:
            break
        best = fewer
    return best


def _curve(graph: Graph, runs: Sequence[Run]) -> NDArray[np.int64]:
    """The device's bytes in each run."""
    schedule = schedule_of(graph, runs)
    curve = simulate(graph, schedule, machine=Machine()).device_curve
    return curve[np.asarray(schedule.verbs) == Verb.COMPUTE]


def _left_out(graph: Graph, runs: Sequence[Run], curve: NDArray[np.int64], limit: int) -> set[int]:
    """The places of the repeats. Fills `curve`."""
    seconds: list[float] = graph.operations.time.tolist()
    repeats: list[tuple[float, int, list[Gap]]] = []
    for place, gaps in _repeats(graph, runs):
        cost = sum(size * (last - first + 1) for first, last, size in gaps)
        repeats.append((-seconds[runs[place][0]] / cost if cost else -inf, place, gaps))
    left_out: set[int] = set()
    for _score, place, gaps in sorted(repeats):
        for first, last, size in gaps:
            curve[first : last + 1] += size
        if all(curve[first : last + 1].max(initial=0) <= limit for first, last, _size in gaps):
            left_out.add(place)
        else:
            for first, last, size in gaps:
                curve[first : last + 1] -= size
    return left_out


def _repeats(graph: Graph, runs: Sequence[Run]) -> Iterator[tuple[int, list[Gap]]]:
    """The places of the runs that are not their operation's first, with what is to be kept for each."""
    sizes: list[int] = graph.tensors.bytes.tolist()
    reads, mutates = graph.read_lists, graph.mutate_lists
    touched = [-1] * len(sizes)
    ran = [False] * len(graph.operations)
    for place, (operation, mode) in enumerate(runs):
        made = [x for x, _bit in graph.contributions(operation, mode)]
        if ran[operation]:
            yield place, [(touched[x] + 1, place - 1, sizes[x]) for x in made if sizes[x]]
        ran[operation] = True
        for x in (*reads[operation], *mutates[operation], *made):
            touched[x] = place
