"""Every solver on every small instance at every budget, against exhaustive search.

For each: a schedule that the simulator accepts within the budget, never faster than the exact optimum over
all orders and recomputations, never below its own lower bound; or a refusal whose least budget is honest.
"""

from __future__ import annotations

from functools import cache

import pytest
from exact import optimal_time
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem, Status, ValidatedSolution
from memplan.solvers.registry import run as registry

CHAINS = [
    chain(2, seed=1, parameters=False),
    chain(3, seed=2, fast_forward=False),
    chain(3, seed=3, parameters=False),
    chain(4, uniform=True, parameters=False),
]
NO_CHAINS = [layered(9, width=3), layered(8, seed=5, width=2)]
GRAPHS = {graph.name + str(index): graph for index, graph in enumerate([*CHAINS, unet(1), *NO_CHAINS])}
SOLVERS = [entry.name for entry in registry.entries() if not entry.needs_links]
SHARDED = {"fsdp", "fsdp-tuned", "fsdp-prefetch", "sharded-search"}
MOVERS = [entry.name for entry in registry.entries() if entry.needs_links and entry.name not in SHARDED]
"""They move data: held against exhaustive search in test_offload_solvers.py.

SHARDED take sharded graphs alone, whose network is in the graph.
"""
ANY_GRAPH = {"store-all", "checkmate", "rk-checkmate", "moccasin", "tw-remat", "search", "auto"}
NEVER_PLAIN = {"revolve", "layer-checkpoint", "torch-partitioner"}
"""The first never saves two blocks at once, the second never saves one, the third saves its own choice."""


@cache
def budgets(graph: str) -> list[int]:
    """From the floor to the plain peak, in five steps."""
    low, high = minimum_memory(GRAPHS[graph]), baseline(GRAPHS[graph]).peak
    return sorted({low + (high - low) * step // 4 for step in range(5)})


@cache
def optimum(graph: str, budget: int) -> float | None:
    return optimal_time(GRAPHS[graph], budget)


def refused_by_form(solver: str, graph: str) -> bool:
    if solver == "layer-checkpoint":  # only `chain` numbers its layers
        return not graph.startswith("chain")
    return solver not in ANY_GRAPH and GRAPHS[graph] in NO_CHAINS


def attempt(solver: str, graph: Graph, budget: int) -> ValidatedSolution | InfeasibleError:
    try:
        return registry.solve(solver, Problem(graph, budget))
    except InfeasibleError as refusal:
        return refusal


@pytest.mark.sampled(5)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_solver_against_exhaustive_search(solver: str, graph: str) -> None:
    if refused_by_form(solver, graph):
        with pytest.raises(NotAcceptedError):
            registry.solve(solver, Problem(GRAPHS[graph], budgets(graph)[-2]))
        return
    times, refused = list[float](), set[int]()
    for budget in budgets(graph):
        best, found = optimum(graph, budget), attempt(solver, GRAPHS[graph], budget)
        if isinstance(found, InfeasibleError):
            assert not times, "feasible at a smaller budget"
            assert found.min_memory == minimum_memory(GRAPHS[graph])
            assert budget < baseline(GRAPHS[graph]).peak
            assert found.least is not None
            assert found.least > budget
            refused.add(found.least)
            continue
        assert best is not None
        figures = simulate(GRAPHS[graph], found.schedule, budget=budget).figures
        assert figures == found.figures
        assert figures.peak <= budget
        assert figures.time >= best * (1 - 1e-12)
        assert found.lower_bound is not None
        assert found.lower_bound <= best * (1 + 1e-12)
        times.append(figures.time)
    if solver not in NEVER_PLAIN:
        assert times[-1] == baseline(GRAPHS[graph]).time
    assert times == sorted(times, reverse=True)
    if solver == "store-all":
        assert len(times) == 1
    for least in refused:
        recomputed = attempt(solver, GRAPHS[graph], least)
        assert isinstance(recomputed, ValidatedSolution), f"{least:,} B were named as enough"
        assert recomputed.figures.peak <= least


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("solver", MOVERS)
def test_solvers_that_move_data_need_links(solver: str, graph: str) -> None:
    with pytest.raises(NotAcceptedError, match=f"{solver} needs a machine with links d2h and h2d"):
        registry.solve(solver, Problem(GRAPHS[graph], budgets(graph)[-1]))


@pytest.mark.parametrize("index", range(len(CHAINS)))
def test_checkmate_is_never_above_rotor_on_chains(index: int) -> None:
    graph = CHAINS[index]
    compared = 0
    for budget in budgets(list(GRAPHS)[index]):
        rotor, checkmate = (attempt(solver, graph, budget) for solver in ("rotor", "checkmate"))
        if isinstance(rotor, ValidatedSolution):
            assert isinstance(checkmate, ValidatedSolution)
            assert checkmate.status == Status.OPTIMAL
            assert checkmate.figures.time <= rotor.figures.time * (1 + 1e-9)
            compared += 1
    assert compared
