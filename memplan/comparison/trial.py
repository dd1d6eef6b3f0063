"""One trial of a comparison, in a worker process of its own (run.py).

Before the clock runs, the solver solves a small chain with updates, on a machine with the graph's links. So
what is loaded or compiled at the first use is not in its time. Then `STARTED` is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import Any

from ..graphs.errors import MemplanError
from ..graphs.files.files import load_graph
from ..graphs.generators import chain
from ..graphs.graph import Graph
from ..graphs.machine import Links, Machine
from ..graphs.transformations.updates import ADAMW, with_updates
from ..planner.baseline import baseline, baseline_schedule
from ..planner.schedule.file import save_schedule
from ..solvers.allowed import restrict
from ..solvers.bounds.lower_bounds import lower_bounds
from ..solvers.incumbent import Incumbent
from ..solvers.problem import Bound, InfeasibleError, NotAcceptedError, NotFoundError, Problem
from ..solvers.registry import run as registry
from ..solvers.skipped import INTERNAL_ERROR
from ..solvers.workers.serve import Call
from .trials import Outcome, Trial

WARM_UP_LIMIT = 1.0
"""Time limit of the warm-up, seconds."""


STARTED = "started"
"""Event that the clock runs."""

Ending = dict[str, Any]
"""Outcome of a trial and its figures, as `trials.row` takes them."""


def run(call: Call, trial: Trial, bound_seconds: float) -> Ending:
    """Run a trial. bound_seconds: for lower bounds."""
    graph = load_graph(trial.instance.path)
    with call.interruptible():
        solver, given, _all = trial.contender
        warm_up(solver, given, (graph.machine or Machine()).links)
        call.report(STARTED)
        return answer(trial, graph, bound_seconds)


def warm_up(solver: str, given: Mapping[str, str], links: Links) -> None:
    """Have the solver load and compile its code. If it fails here, it will fail in the trial too.

    given: its settings.
    links: those of the graph's machine; without them solvers that offload load none of their code for it.
    """
    rate = 1e9
    graph = with_updates(chain(8), optimizer=ADAMW, when="in-backward", device_rate=rate, host_rate=rate)
    # Less than the baseline's peak, so that the solver has to search.
    problem = Problem(graph, baseline(graph).peak * 4 // 5, Machine(links=links))
    with suppress(Exception):
        registry.solve(solver, problem, WARM_UP_LIMIT, given, bound_seconds=0.0)


def answer(trial: Trial, graph: Graph, bound_seconds: float) -> Ending:
    """Solve the trial's problem, and return how it ended."""
    problem = Problem(graph, trial.budget_bytes, allow=trial.allow)
    race, start = Incumbent(), perf_counter()
    try:
        found = registry.solve(
            trial.contender.solver,
            problem,
            trial.time_limit,
            trial.contender.given,
            bound_seconds=bound_seconds,
            race=race,
        )
    except Exception as error:
        seconds = error.seconds if isinstance(error, InfeasibleError) else None
        ending = {**_refusal(error), "seconds": seconds or perf_counter() - start}
        if isinstance(error, InfeasibleError) and bound_seconds > 0:
            own = restrict(problem).problem
            bounds = lower_bounds(own, baseline_schedule(own.graph), inf, bound_seconds)
            return {**ending, **_bounds(bounds)}
        return ending
    # A solve replaces a faulty schedule by another; a comparison of solvers shows the fault.
    if fault := next((note for note in found.notes if note.startswith(INTERNAL_ERROR)), None):
        return {"outcome": Outcome.FAULT, "message": fault, "seconds": found.seconds}
    if trial.kept:
        save_schedule(trial.kept, graph, found.schedule, budget=problem.budget, solver={"name": found.solver})
    return {
        "outcome": Outcome.OK,
        "time": found.figures.time,
        "peak": found.figures.peak,
        **_bounds(found.bounds),
        **({} if found.effort is None else {"nodes": found.effort.nodes, "own_gap": found.effort.gap}),
        "status": found.status,
        "seconds": found.seconds,
        "history": improvements(race),
    }


def improvements(race: Incumbent) -> list[tuple[float, float]]:
    """Return, for each schedule that was faster than all before, when it was found, and its seconds."""
    # reversed: of equal times the earliest remains.
    first = {one.best: one.elapsed for one in reversed(race.history) if one.best < inf}
    return [(round(elapsed, 3), best) for best, elapsed in reversed(first.items())]


def _bounds(bounds: Iterable[Bound]) -> dict[str, float]:
    """Return the largest bounds of each sort.

    The sorts are: those for every schedule; those for any order with each backward operation run once; all
    others. Bounds for schedules of some form alone are left out.
    """
    found: dict[str, float] = {}
    for bound in bounds:
        if bound.form:
            continue
        name = "lower_bound" if bound.general else "traced_order_bound"
        if not bound.backward_again:
            name = "backward_once_bound"
            if bound.order == "file":
                continue
        found[name] = max(bound.seconds, found.get(name, 0.0))
    return found


def _refusal(error: Exception) -> dict[str, Any]:
    if isinstance(error, NotFoundError):
        return {"outcome": Outcome.NOT_FOUND, "message": str(error)}
    if isinstance(error, InfeasibleError):
        return {"outcome": Outcome.INFEASIBLE, "least_budget": error.least, "message": str(error)}
    if isinstance(error, NotAcceptedError):
        return {"outcome": Outcome.NOT_ACCEPTED, "message": str(error)}
    kind = "" if isinstance(error, MemplanError) else f"{type(error).__name__}: "
    return {"outcome": Outcome.FAULT, "message": f"{kind}{error}"}
