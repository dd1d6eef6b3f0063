"""A schedule in a moment, so that there is one before any search: as much stays on the device as fits.

All that is worth it is offloaded, then tensors stay, the shortest intervals first (fill.py). If that is not
within the budget, shares of the activations are recomputed as well, those that `Starts` tries first. About
one second of processor time for 4,000 operations; what it finds is far from the best.
"""

from __future__ import annotations

from collections.abc import Callable

from ....planner.residency.prefetch_placement import place_prefetches
from ....planner.schedule.schedule import Schedule
from ...candidates import device_limit
from ...problem import NotAcceptedError, Options, Problem, SolverResult, Status
from .compiling import CODES, load
from .drops import Drops
from .fill import fill, shortest_first
from .joint import NAME, require_links
from .start import FIRST, LOOK_AHEADS, Starts, smallest_sizes
from .state import State


def first_schedule(problem: Problem, cancelled: Callable[[], bool]) -> SolverResult:
    """Return a schedule within the budget. Raises NotAcceptedError if none is found at once."""
    machine = require_links(NAME, problem)
    # Compiling takes longer than the moment that this may take.
    if not all(code.available() for code in CODES):
        raise NotAcceptedError("the code of joint is not compiled yet")
    load(Options())
    drops, limit = Drops(problem.graph, machine.links.peers), device_limit(problem)
    state = State(problem.graph, machine, limit, drops.runs)
    found = _filled(state, smallest_sizes(problem.graph, machine, limit))
    if found is None:
        starts = Starts(drops, machine, limit, lambda: not cancelled())
        best = next((starts.best for shares in FIRST if starts.attempt(starts.choice(*shares))), None)
        placed = best and place_prefetches(problem.graph, machine, limit, best.residency, LOOK_AHEADS)
        found = placed[0] if placed else None
    if found is None:
        raise NotAcceptedError("nothing was found at once")
    return SolverResult(found, Status.HEURISTIC)


def _filled(state: State, smallest: list[int]) -> Schedule | None:
    """Return a schedule without recomputation. smallest: bytes of tensors that may leave, tried in order."""
    # The largest first: small tensors leave only if the budget needs it.
    for state.smallest in smallest:
        state.send_all()
        if state.demand <= state.budget:
            break
    else:
        return None
    fill(state, shortest_first(state, state.intervals), state.budget, state.curve)
    outcome = state.evaluate(LOOK_AHEADS[0])
    return None if outcome.excess else state.schedule(outcome)
