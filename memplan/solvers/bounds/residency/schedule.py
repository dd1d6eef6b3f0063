"""The fastest schedule in traced order, from the answers of the residency program.

The program (program.py) says what is recomputed between the moments it looks at; with each recomputation just
before it is needed, that is a schedule (sequence.py). If it is over the budget, its peaks become moments, and
the program is solved once more. If it fits, no schedule in traced order is faster by more than the gap to the
program's bound: often none. If the time is too short for that, the budget that the program is given is
lowered by the excess.

Time: exponential in the worst case; seconds for some hundred operations, for which a program over all pairs
of stage and operation (checkmate) takes minutes. Reference: Jain et al. 2020, arXiv:1910.02653, whose optima
in traced order these are; the choice of few moments, where they bind, was developed for memplan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....graphs.graph import Graph
from ...clock import Clock
from .residency import Residency, residency_of
from .search import ResidencyBoundSearch

FIRST_SHARE = 0.6
"""Share of the time for the program with the whole budget; what is left is halved for each lowered one."""


def residency_schedule(
    graph: Graph,
    budget: int,
    time_limit: float | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Residency:
    """Find the bound for the traced order and the fastest schedule; `schedule` is None if none was found."""
    clock = Clock(time_limit, cancelled)
    search = ResidencyBoundSearch(graph, budget, "file", FIRST_SHARE * clock.left, cancelled=cancelled)
    best = residency_of(search, "file")
    lowered = budget
    while not (best.schedule or best.interrupted) and search.least and clock.goes_on():
        # By the excess of the leanest schedule found, bytes.
        lowered = min(lowered, search.budget) - (search.least - budget)
        search = ResidencyBoundSearch(
            graph, lowered, "file", clock.left / 2, limit=budget, moments=search.chosen, cancelled=cancelled
        )
        found = residency_of(search, "file")
        best = replace(best, schedule=found.schedule, interrupted=found.interrupted)
    return best
