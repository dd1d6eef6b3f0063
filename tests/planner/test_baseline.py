"""The baseline's figures, computed at once, are those that the simulator finds step by step."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine
from memplan.planner.baseline import baseline, baseline_schedule
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
