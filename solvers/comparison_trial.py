"""One trial in a process of its own: `python -m memplan.solvers.comparison_trial question.json answer.json`.

The question is the path of the graph, the budget in bytes, the solver's name and settings, the time limit
and the time for lower bounds in seconds; the answer is the ending that `comparison.row` takes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from ..graphs.errors import MemplanError
from ..graphs.files import load_graph
from . import registry
from .comparison import Outcome, Trial
from .problem import InfeasibleError, NotAcceptedError, NotFoundError, Problem


def question(trial: Trial, bound_seconds: float) -> dict[str, Any]:
    return {
        "graph": str(trial.instance.path),
        "budget": trial.budget_bytes,
        "solver": trial.contender.solver,
        "settings": dict(trial.contender.given),
        "time_limit": trial.time_limit,
        "bound_seconds": bound_seconds,
    }


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    graph = load_graph(asked["graph"])
    problem = Problem(graph, asked["budget"])
    start = perf_counter()
    try:
        found = registry.solve(
            asked["solver"],
            problem,
            asked["time_limit"],
            asked["settings"],
            bound_seconds=asked["bound_seconds"],
        )
    except Exception as error:
        return {**_refusal(error), "seconds": perf_counter() - start}
    return {
        "outcome": Outcome.OK,
        "time": found.figures.time,
        "peak": found.figures.peak,
        "lower_bound": found.lower_bound,
        "file_order_bound": next((bound.seconds for bound in found.bounds if bound.order == "file"), None),
        "status": found.status,
        "seconds": found.seconds,
    }


def _refusal(error: Exception) -> dict[str, Any]:
    if isinstance(error, NotFoundError):
        return {"outcome": Outcome.NOT_FOUND, "message": str(error)}
    if isinstance(error, InfeasibleError):
        return {"outcome": Outcome.INFEASIBLE, "least_budget": error.least, "message": str(error)}
    if isinstance(error, NotAcceptedError):
        return {"outcome": Outcome.NOT_ACCEPTED, "message": str(error)}
    kind = "" if isinstance(error, MemplanError | registry.SolverFaultError) else f"{type(error).__name__}: "
    return {"outcome": Outcome.FAULT, "message": f"{kind}{error}"}


if __name__ == "__main__":
    ask, tell = map(Path, sys.argv[1:])
    tell.write_text(json.dumps(answer(json.loads(ask.read_text()))))
