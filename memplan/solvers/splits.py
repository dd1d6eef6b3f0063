"""The choice among graphs of one iteration: with whole operations, or with regions of them in pieces.

Any solver takes any of the graphs. Pieces need less memory and take longer, so which of the graphs has the
fastest schedule depends on the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from typing import TypeVar

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.bounds import time_bound
from ..planner.variants import runnable
from .problem import InfeasibleError, NotAcceptedError

NOTHING_TO_GAIN = 1.005
"""Time of a plan, over that of its operations, up to which pieces or more of them can't make it faster."""

WORTH_ROUNDING = 1.03
"""Factor by which a plan with pieces must be faster than one with eager PyTorch's bits."""

Split = TypeVar("Split")
Result = TypeVar("Result")


def fastest(
    whole: Graph,
    in_pieces: Iterable[tuple[Graph, Split]],
    solve: Callable[[Graph, Split | None], tuple[float, Result]],
    *,
    exact: bool,
    measured: bool = False,
) -> Result:
    """Return what solving makes of the graph with the fastest schedule: the whole one, or one in pieces.

    More pieces take longer, and leave more room to what else a plan keeps: they are tried as long as that
    makes it faster, or all of them if they are measured already.

    in_pieces: graphs with more and more pieces, made as they are asked for.
    solve: returns the seconds of a graph's schedule, and what is to be returned of it.
    exact: pieces have the bits of the whole, so that any gain is worth them.
    measured: asking for a graph costs nothing.

    Raises InfeasibleError, that of the smallest budget.
    """
    best: tuple[float, Result] | None = None
    refusal: InfeasibleError | None = None
    for graph, split in chain([(whole, None)], in_pieces):
        worth = 1.0 if split is None or exact else WORTH_ROUNDING
        least = time_bound(graph)
        # No schedule is faster than the operations: a graph that can't win is not solved.
        if best is None or worth * least < best[0]:
            try:
                seconds, result = solve(graph, split)
            except InfeasibleError as error:
                # `<=`: of equal ones the last, which has more pieces.
                if refusal is None or (error.smallest or inf) <= (refusal.smallest or inf):
                    refusal = error
                continue
            except NotAcceptedError:
                if split is None:
                    raise
                continue  # a solver of chains may not take a graph with regions
            if best is None or worth * seconds < best[0]:
                best = worth * seconds, result
                # The plan still recomputes or waits: more room may make it faster.
                if measured or seconds > NOTHING_TO_GAIN * least:
                    continue
        # No faster than with fewer pieces, or nothing is left to gain: more aren't tried.
        if not measured:
            break
    if best is None:
        assert refusal is not None
        raise refusal
    return best[1]


def bound_of_all(graphs: Sequence[Graph], machine: Machine | None, known: Mapping[int, float]) -> float:
    """Return seconds that no schedule of any of the graphs is faster than.

    known: lower bounds by the graph's number, infinite where no schedule exists. Without one, the operations'
        time alone bounds a graph's schedules.
    """
    return min(
        known[k] if k in known else time_bound(runnable(graph, machine)) for k, graph in enumerate(graphs)
    )
