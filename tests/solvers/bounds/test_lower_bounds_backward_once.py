"""Bounds for schedules that run no backward operation twice, and what a refusal says of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest
from exact import optimal_time
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.graph import Graph, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.bounds import backward_once, minimum_memory, minimum_memory_once
from memplan.solvers.bounds.lower_bounds import lower_bounds, proofs_of_none
from memplan.solvers.problem import Bound, InfeasibleError, NotFoundError, Problem
from memplan.solvers.registry import run as registry
from small_graphs import small_graph

ROOM = 1 + 1e-9


def trained(seed: int) -> Graph:
    """A small graph, backward from some operation on."""
    random = Random(seed)
    graph = small_graph(random)
    graph.operations.phase[random.randrange(len(graph.operations)) :] = Phase.BACKWARD
    return graph


def budgets(graph: Graph, most: int = 4) -> range:
    low, high = minimum_memory(graph), baseline(graph).peak
    return range(low, high + 1, max(1, (high - low) // most))


@pytest.mark.scripts
@settings(max_examples=15)
@given(st.integers(0, 10**9))
def test_none_is_above_the_optimum_of_its_kind(seed: int) -> None:
    graph = trained(seed)
    for budget in budgets(graph):
        best = {True: optimal_time(graph, budget), False: optimal_time(backward_once(graph), budget)}
        for bound in lower_bounds(Problem(graph, budget), baseline_schedule(graph), inf, 10):
            optimum = best[bound.backward_again]
            assert bound.order == "file" or optimum is None or bound.seconds <= optimum * ROOM


def test_it_is_told_where_it_is_the_larger() -> None:
    """Just below the once-floor, where schedules repeat backward operations."""
    graph = next(graph for graph in map(trained, range(10**4)) if _repeats(graph))
    min_memory = minimum_memory_once(graph)
    assert min_memory is not None
    reported = classes(lower_bounds(Problem(graph, min_memory - 1), baseline_schedule(graph), inf, 10))
    assert reported["file", False] == inf > reported["any", True]
    assert reported["any", False] >= reported["any", True]
    roomy = classes(lower_bounds(Problem(graph, baseline(graph).peak), baseline_schedule(graph), inf, 10))
    assert not any(recomputed is False for _order, recomputed in roomy), (
        "no answer repeats backward operations"
    )


def classes(bounds: list[Bound]) -> dict[tuple[str, bool], float]:
    return {(bound.order, bound.backward_again): bound.seconds for bound in bounds}


@settings(max_examples=60)
@given(st.integers(0, 10**9))
def test_proofs_that_there_is_none_are_true(seed: int) -> None:
    graph = trained(seed)
    for budget in budgets(graph, 3):
        for bound in proofs_of_none(Problem(graph, budget), 10):
            if bound.order == "any":
                assert optimal_time(graph if bound.backward_again else backward_once(graph), budget) is None


def refusal(
    graph: Graph, budget: int, seconds: float = 10, machine: Machine | None = None
) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as caught:
        registry.solve("store-all", Problem(graph, budget, machine), bound_seconds=seconds)
    return caught.value


def test_what_a_refusal_says() -> None:
    graph = trained(291)
    assert _repeats(graph)
    min_memory = minimum_memory_once(graph) or 0
    proven = refusal(graph, min_memory - 1)
    assert "none without offloading, in any order, unless a backward operation runs twice" in str(proven)
    assert {bound.order for bound in proven.bounds} == {"any", "file"}
    assert all(bound.seconds == inf and not bound.backward_again for bound in proven.bounds)
    quick = refusal(graph, min_memory - 1, 0)
    said = f"below {min_memory:,} B there is none without offloading, in the traced order, unless a backward"
    assert said in str(quick)
    assert quick.seconds is not None
    linked = refusal(graph, min_memory - 1, machine=Machine(links=Links(1.0, 1.0)))
    assert "twice" not in str(linked)


def _repeats(graph: Graph) -> bool:
    """The fastest schedule just below the once-floor, where none has backward operations once."""
    min_memory = minimum_memory_once(graph)
    return (
        min_memory is not None
        and min_memory > minimum_memory(graph)
        and optimal_time(graph, min_memory - 1) is not None
        and optimal_time(backward_once(graph), min_memory - 1) is None
    )


def test_no_schedule_at_all() -> None:
    graph = next(graph for graph in map(trained, range(10**4)) if _none(graph))
    min_memory = minimum_memory_once(graph)
    assert min_memory is not None
    assert "it is proven that there is none without offloading, in any order" in str(
        refusal(graph, min_memory - 1)
    )
    assert "unless" not in str(refusal(graph, min_memory - 1))


def _none(graph: Graph) -> bool:
    """Nothing between the floor and the once-floor, and the program says so."""
    min_memory = minimum_memory_once(graph)
    if (
        min_memory is None
        or min_memory <= minimum_memory(graph)
        or optimal_time(graph, min_memory - 1) is not None
    ):
        return False
    return any(bound.general for bound in proofs_of_none(Problem(graph, min_memory - 1), 10))


def test_a_time_limit_keeps_the_clause() -> None:
    error = NotFoundError("search", 99, 50)
    error.add_details(100, [])
    assert (
        "below 100 B there is none without offloading, in the traced order, unless a backward operation"
        in str(error)
    )


def test_which_bound_covers_which() -> None:
    general, file = Bound(1.0, "a", "any"), Bound(1.0, "a", "file")
    once = replace(general, backward_again=False)
    assert general.covers(file)
    assert general.covers(once)
    assert not file.covers(once)
    assert not once.covers(general)
    assert not once.general
