"""Greedy eviction: what it gives is valid, within the budget, and made of stages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from memplan.graphs.generators import chain, unet
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.schedule.sequence import schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.recomputation.checkmate.model import staged_program
from memplan.solvers.stages.eviction import POWERS, sequences
from small_graphs import small_graphs


def check(graph: Graph, budget: int) -> int:
    """How many sequences there are; each is judged."""
    staged = staged_program(graph, baseline(graph).peak)
    found = list(sequences(graph, budget, lambda: True))
    for runs in found:
        simulate(graph, schedule_of(graph, runs), budget=budget)
        assert staged.runs.values(runs) is not None
    return len(found)


@settings(max_examples=200)
@given(small_graphs())
def test_all_it_gives_is_valid_within_the_budget_and_in_stages(graph: Graph) -> None:
    peak = baseline(graph).peak
    for budget in range(peak, peak // 2, -1):
        check(graph, budget)
    assert check(graph, 2 * peak) == len(POWERS)


@pytest.mark.parametrize("graph", [chain(12), chain(12, fast_forward=False), unet(5)], ids=lambda g: g.name)
def test_it_finds_something_for_training_graphs(graph: Graph) -> None:
    assert check(graph, baseline(graph).peak * 7 // 10)


def test_it_stops_when_told() -> None:
    graph = unet(5)
    assert not list(sequences(graph, baseline(graph).peak, lambda: False))
