"""The residency bounds against exhaustive searches: never above what some schedule reaches."""

from __future__ import annotations

from exact import optimal_time
from hypothesis import given, settings
from memplan.graphs.graph import Graph
from memplan.planner.bounds import memory_floor, time_bound
from memplan.planner.plain import baseline
from memplan.solvers.residency import free_order_bound, residency_bound
from small_graphs import small_graphs
from test_checkmate import least_time

ROOM = 1 + 1e-9


def steps(graph: Graph, most: int) -> range:
    low, high = memory_floor(graph) - 1, baseline(graph).peak
    return range(low, high + 1, max(1, (high - low) // most))


@settings(max_examples=150)
@given(small_graphs())
def test_the_files_order_is_never_faster_than_its_bound(graph: Graph) -> None:
    """Shared contributions, several outputs, changes in place, modes, workspaces: at every budget."""
    for budget in steps(graph, 8):
        best, bound = least_time(graph, budget), residency_bound(graph, budget).bound
        assert bound.order == "file"
        assert best is None or bound.seconds <= best * ROOM
        assert best is not None or bound.seconds >= time_bound(graph) * (1 - 1e-9)


@settings(max_examples=60)
@given(small_graphs())
def test_no_schedule_is_faster_than_the_bound_for_any_order(graph: Graph) -> None:
    for budget in steps(graph, 5):
        best, bound = optimal_time(graph, budget), free_order_bound(graph, budget).bound
        assert bound.order == "any"
        assert best is None or bound.seconds <= best * ROOM
        assert bound.seconds <= residency_bound(graph, budget).bound.seconds * ROOM
