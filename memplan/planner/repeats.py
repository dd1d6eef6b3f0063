"""Removal of recomputations from a sequence: their results are kept instead, within the limit.

Without a recomputation its results stay resident, from their last use before it up to it. Recomputations
are tried by

    seconds saved / Σ bytes · runs in the gap

the largest first; one is removed if its bytes fit alongside all else throughout. Runs that served it alone
are then no longer needed, so the sequence is pruned and searched anew, until nothing more fits. A repeat in
another variant stays if it produces what earlier runs left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from .schedule.schedule import Verb
from .schedule.sequence import Run, prune, schedule_of
from .simulator.simulate import simulate

Gap = tuple[int, int, int]
"""The runs first … last in which a tensor is not resident, and its bytes."""


def without_repeats(graph: Graph, runs: Sequence[Run], limit: int, proceed: Callable[[], bool]) -> list[Run]:
    """Remove recomputations from a sequence: the result is no slower, and its peak no larger.

    The peak stays within `limit` bytes, or within that of `runs` if it is larger.
    """
    best = prune(graph, runs)
    curve = _curve(graph, best)
    while proceed():
        # A sequence above the limit may stay as high as it is: its peak never grows.
        most = max(limit, int(curve.max(initial=0)))
        left_out = _left_out(graph, best, curve, most)
        fewer = prune(graph, [run for place, run in enumerate(best) if place not in left_out])
        curve = _curve(graph, fewer)
        if not left_out or curve.max(initial=0) > most:
            break
        best = fewer
    return best


def without_most_repeats(
    graph: Graph, runs: Sequence[Run], limit: int, tries: int, proceed: Callable[[], bool]
) -> list[Run]:
    """Remove recomputations one by one, the longest first, each checked exactly, and by `without_repeats`.

    Runs that served a removed one alone go with it, so more fits than `without_repeats` estimates. That is
    called first, and after each success. tries: the most removals that are checked.
    """
    best = without_repeats(graph, runs, limit, proceed)
    peak = int(_curve(graph, best).max(initial=0))
    places = _longest_first(graph, best)
    # A removal that fails is not tried a second time until one succeeds.
    while places and tries and proceed():
        place = places.pop()
        fewer = prune(graph, [*best[:place], *best[place + 1 :]])
        reached = int(_curve(graph, fewer).max(initial=0))
        tries -= 1
        if reached <= max(limit, peak):
            best = without_repeats(graph, fewer, limit, proceed)
            peak = int(_curve(graph, best).max(initial=0))
            places = _longest_first(graph, best)
    return best


def _longest_first(graph: Graph, runs: Sequence[Run]) -> list[int]:
    """Return the positions of the recomputations, by seconds, the longest last (the end is popped first)."""
    seconds: list[float] = graph.repeat_seconds.tolist()
    return sorted(
        (place for place, _gaps in _repeats(graph, runs)), key=lambda place: seconds[runs[place][0]]
    )


def _curve(graph: Graph, runs: Sequence[Run]) -> NDArray[np.int64]:
    """Return the device's bytes in each run."""
    schedule = schedule_of(graph, runs)
    curve = simulate(graph, schedule, machine=Machine()).device_curve
    return curve[np.asarray(schedule.verbs) == Verb.COMPUTE]


def _left_out(graph: Graph, runs: Sequence[Run], curve: NDArray[np.int64], limit: int) -> set[int]:
    """Return the positions of the recomputations that fit if left out. Fills `curve`."""
    seconds: list[float] = graph.repeat_seconds.tolist()
    repeats: list[tuple[float, int, list[Gap]]] = []
    for place, gaps in _repeats(graph, runs):
        cost = sum(size * (last - first + 1) for first, last, size in gaps)
        # Nothing to keep costs nothing: first of all.
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
    """Yield the positions of the runs that produce only what was produced before, with what to keep for
    each."""
    sizes: list[int] = graph.tensors.bytes.tolist()
    touched = [-1] * len(sizes)
    parts = [0] * len(sizes)
    ran = [False] * len(graph.operations)
    for place, (operation, mode) in enumerate(runs):
        made = graph.contributions(operation, mode)
        if ran[operation] and all(parts[x] & bit for x, bit in made):
            # Resident until its last use anyway, and from this run on.
            yield place, [(touched[x] + 1, place - 1, sizes[x]) for x, _bit in made if sizes[x]]
        ran[operation] = True
        for x, bit in made:
            parts[x] |= bit
            touched[x] = place
        for x in graph.input_lists[operation]:
            touched[x] = place
