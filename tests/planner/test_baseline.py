"""The baseline's figures, computed at once, are those that the simulator finds step by step."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine
from memplan.planner.baseline import baseline, baseline_schedule, whole_baseline
from memplan.planner.simulator.simulate import simulate
from small_graphs import small_graphs
from wide_graphs import wide_graph


@settings(max_examples=500)
@given(small_graphs())
def test_the_figures_are_the_simulators(graph: Graph) -> None:
    assert baseline(graph) == simulate(graph, baseline_schedule(graph), machine=Machine()).figures


@given(st.integers(0, 10**9))
def test_the_figures_are_the_simulators_with_states_and_updates(seed: int) -> None:
    graph = wide_graph(Random(seed))
    assert baseline(graph) == simulate(graph, baseline_schedule(graph), machine=Machine()).figures


def test_graphs_of_one_structure_share_their_schedule_and_have_figures_of_their_own() -> None:
    graph = wide_graph(Random(1))
    operations = replace(graph.operations, time=2 * graph.operations.time)
    slower = replace(graph, operations=operations).share_structure(graph)
    apart = replace(graph, operations=operations)
    assert baseline_schedule(slower) is baseline_schedule(graph)
    assert baseline_schedule(apart) is not baseline_schedule(graph)
    assert baseline(slower) == baseline(apart) == replace(baseline(graph), time=2 * baseline(graph).time)


def test_the_baseline_of_whole_operations_is_that_of_the_source() -> None:
    graph = chain(4)
    own = baseline(graph)
    assert whole_baseline(graph) == own
    recorded = replace(graph, source={"whole": {"time": 2.5, "peak": 77}})
    assert whole_baseline(recorded) == replace(own, time=2.5, peak=77)
    # A file of an earlier memplan: shares are of that peak.
    assert whole_baseline(replace(graph, source={"within": {"budget": "30%", "peak": 77}})).peak == 77
    for junk in (
        7,
        {},
        {"time": "x", "peak": 1},
        {"time": 1.0, "peak": -1},
        {"time": float("nan"), "peak": 1},
    ):
        assert whole_baseline(replace(graph, source={"whole": junk})) == own
