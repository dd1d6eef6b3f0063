"""A solver's answer, or its refusal."""

from __future__ import annotations

from memplan.graphs.graph import Graph
from memplan.solvers.problem import InfeasibleError, Problem, ValidatedSolution
from memplan.solvers.registry import run as registry


def attempt(solver: str, graph: Graph, budget: int, **settings: int) -> ValidatedSolution | InfeasibleError:
    texts = {key: str(value) for key, value in settings.items()}
    try:
        return registry.solve(solver, Problem(graph, budget), settings=texts, bound_seconds=0)
    except InfeasibleError as refusal:
        return refusal


def assert_honest(refusal: InfeasibleError, solver: str, graph: Graph, budget: int, **settings: int) -> None:
    """The least budget of a refusal is above the budget, and the solver reaches it."""
    assert refusal.least is not None
    assert budget < refusal.least
    found = attempt(solver, graph, refusal.least, **settings)
    assert isinstance(found, ValidatedSolution)
    assert found.figures.peak <= refusal.least
