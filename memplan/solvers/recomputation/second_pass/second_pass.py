"""Backward in two passes, for budgets within which no schedule runs every backward operation only once.

Late in backward, memory holds the tensors in use and the gradients of the weights made so far; those of the
last layers, made first, are often the largest. The first pass makes and drops them. After it, and before the
updates, a second one recomputes them:

    first pass    forward, backward            gradients made up to operation `last` are dropped
    second pass   forward, backward to `last`  what these need, in the same lean sequence

Both follow rk-rotor's sequence of least memory. Of a dozen choices of `last` the fastest schedule within the
budget is taken; each costs one replay. It costs about another forward pass and a part of backward, so this is
a start for the search, which removes what it can.

Developed for memplan. The search repeats backward operations near the peak; it has no single move that
repeats many at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ....graphs.graph import Graph, Phase
from ....planner.bounds import minimum_memory
from ....planner.errors import InvalidScheduleError
from ....planner.schedule.sequence import Run, runs_of, schedule_of
from ...candidates import Candidate, device_limit, simulate_candidate
from ...incumbent import Incumbent
from ...problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Options,
    Problem,
    SolverResult,
    Status,
)
from ..rockmate import rk_rotor

NAME = "second pass"

_CHOICES = 12


def solve(problem: Problem, options: Options) -> SolverResult:
    """Solve in two passes. Raises NotAcceptedError if the graph is not a chain, NotFoundError."""
    graph, limit = problem.graph, device_limit(problem)
    base = _leanest(problem, options)
    tried = list[Candidate]()
    for last in _choices(graph):
        if options.cancelled():
            break
        with suppress(InvalidScheduleError):
            tried.append(simulate_candidate(graph, schedule_of(graph, in_two_passes(graph, base, last))))
    within = [found for found in tried if found.peak <= limit]
    if not within:
        min_memory = minimum_memory(graph, problem.machine)
        least = min(tried, key=lambda found: found.peak, default=None)
        refusal = NotFoundError(NAME, limit, min_memory, None if least is None else least.peak)
        raise refusal.holding(None if least is None else least.schedule)
    return SolverResult(min(within, key=lambda found: found.time).schedule, Status.HEURISTIC)


def in_two_passes(graph: Graph, base: Sequence[Run], last: int) -> list[Run]:
    """Return `base` with the gradients of operations up to `last` recomputed before the updates."""
    dropped = {
        x for operation in _producers(graph) if operation <= last for x in graph.operations.writes[operation]
    }
    recomputed = _closure(graph, dropped & _kept(graph))
    updates = graph.operations.phase == Phase.UPDATE
    end = next((place for place, (operation, _mode) in enumerate(base) if updates[operation]), len(base))
    # No delete is needed: a tensor made a second time dies after its last use before that.
    return [*base[:end], *(run for run in base[:end] if run[0] in recomputed), *base[end:]]


def _leanest(problem: Problem, options: Options) -> list[Run]:
    """Return rk-rotor's sequence of least memory.

    It may be above the budget, so it is not reported to the race.
    """
    # The settings belong to another class.
    own, clock = replace(options, settings=None, race=Incumbent()), options.clock()
    try:
        return runs_of(rk_rotor.solve(problem, own).schedule)
    except InfeasibleError as refusal:
        if refusal.least is None:
            raise NotAcceptedError("rk-rotor does not tell its least memory") from None
        own = replace(own, time_limit=clock.limit)
        return runs_of(rk_rotor.solve(replace(problem, budget=refusal.least), own).schedule)


def _choices(graph: Graph) -> Iterator[int]:
    producers = _producers(graph)
    # Fewer producers than choices give equal places.
    places: list[int] = np.unique(np.linspace(0, len(producers) - 1, _CHOICES).astype(int)).tolist()
    return (producers[place] for place in places if producers)


def _producers(graph: Graph) -> list[int]:
    """Return the backward operations that may be recomputed and make what is kept until the updates.

    They are in traced order.
    """
    kept, may = _kept(graph), _may_run_again(graph)
    later = np.flatnonzero(graph.operations.phase == Phase.BACKWARD).tolist()
    return [o for o in later if may[o] and not kept.isdisjoint(graph.operations.writes[o].tolist())]


def _kept(graph: Graph) -> set[int]:
    """Return the results, and what updates read."""
    reads = graph.operations.reads
    of_updates = graph.operations.phase[reads.rows()] == Phase.UPDATE
    return {*graph.results, *reads.columns[of_updates].tolist()}


def _may_run_again(graph: Graph) -> list[bool]:
    # An operation that changes a tensor in place would change it twice.
    return (graph.operations.recompute & (graph.operations.mutates.counts() == 0)).tolist()


def _closure(graph: Graph, tensors: set[int]) -> set[int]:
    """Return the operations to recompute for these tensors if only what can't be recomputed is kept."""
    may, producers = _may_run_again(graph), graph.producers.lists()
    recomputed, waiting = set[int](), list(tensors)
    while waiting:
        for operation in producers[waiting.pop()]:
            if may[operation] and operation not in recomputed:
                recomputed.add(operation)
                waiting += graph.input_lists[operation]
    return recomputed
