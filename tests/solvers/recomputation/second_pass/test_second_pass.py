"""Backward in two passes: schedules below the once-floor."""

from __future__ import annotations

import numpy as np
import pytest
from memplan.graphs.generators import chain, layered
from memplan.graphs.graph import Graph, Phase
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory_once
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import NotAcceptedError, NotFoundError, Options, Problem
from memplan.solvers.recomputation.second_pass import second_pass
from memplan.solvers.registry import run as registry

BLOCKS = 8


def tapered() -> Graph:
    """Activations large in the first block, weights' gradients in the last."""
    graph = chain(BLOCKS, uniform=True, parameters=True)
    for name, x in graph.tensor_index.items():
        block = int(name.strip("abdegiklnorsw_x") or 0)
        large = name.startswith(("x", "a", "g")) and block <= 1
        graph.tensors.bytes[x] = 40 if name == f"dw{BLOCKS}" else 30 if large else 1
    return graph


@pytest.mark.scripts
def test_below_the_once_floor() -> None:
    """The gradient of the last weight is made twice: it is not there while the first block's is made."""
    graph = tapered()
    min_memory = minimum_memory_once(graph)
    assert min_memory is not None
    budget = min_memory - 10
    answer = second_pass.solve(Problem(graph, budget), Options(10))
    figures = simulate(graph, answer.schedule, budget=budget).figures
    runs = np.bincount(answer.schedule.targets[answer.schedule.verbs == Verb.COMPUTE])
    assert runs[graph.operation_index[f"B{BLOCKS}"]] == 2
    assert figures.peak <= budget

    found = registry.solve("auto", Problem(graph, budget), 10)
    assert found.figures.time <= figures.time
    assert all(bound.backward_again or bound.seconds > found.figures.time for bound in found.bounds)


def test_what_it_does_not_reach() -> None:
    graph = tapered()
    with pytest.raises(NotFoundError) as caught:
        second_pass.solve(Problem(graph, 1), Options(10))
    assert caught.value.found is not None
    assert caught.value.found < (minimum_memory_once(graph) or 0)


@pytest.mark.parametrize("seed", range(3))
def test_other_graphs_are_refused_or_solved_within_the_budget(seed: int) -> None:
    """General graphs: rk-rotor may have no chain to go by."""
    graph = layered(40, seed=seed)
    graph.operations.phase[20:] = Phase.BACKWARD
    budget = baseline(graph).peak * 9 // 10
    try:
        answer = second_pass.solve(Problem(graph, budget), Options(10))
    except (NotFoundError, NotAcceptedError):
        return
    assert simulate(graph, answer.schedule, budget=budget).figures.peak <= budget
