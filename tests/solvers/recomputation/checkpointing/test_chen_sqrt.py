"""Periodic checkpoints: which blocks run when, what that costs, and which number of segments is taken."""

from __future__ import annotations

from math import sqrt

import pytest
from attempts import attempt
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, Problem, ValidatedSolution
from memplan.solvers.recomputation.checkpointing.chen_sqrt import segment_starts
from memplan.solvers.registry import run as registry


def chen(graph: Graph, budget: int, segments: int = 0) -> ValidatedSolution:
    return registry.solve(
        "chen-sqrt", Problem(graph, budget), settings={"segments": str(segments)}, bound_seconds=0
    )


def order(graph: Graph, found: ValidatedSolution) -> list[str]:
    steps = zip(found.schedule.verbs.tolist(), found.schedule.targets.tolist(), strict=True)
    return [graph.operations.name[int(target)] for verb, target in steps if verb == Verb.COMPUTE]


@given(st.integers(1, 300), st.integers(1, 300))
def test_segments_are_equal_up_to_one(blocks: int, segments: int) -> None:
    starts = segment_starts(blocks, segments)
    lengths = [end - start for start, end in zip(starts, [*starts[1:], blocks], strict=True)]
    assert starts[0] == 0
    assert len(starts) == min(blocks, segments)
    assert max(lengths) - min(lengths) <= 1


def test_three_segments_of_a_chain_of_five_and_the_loss() -> None:
    """F1 F2 | F3 F4 | F5 loss: the last segment runs on, the others run once more."""
    graph = chain(5, seed=1)
    assert " ".join(order(graph, chen(graph, 10**9, segments=3))) == (
        "F1 F2 F3 F4 F5 loss B5 F3 F4 B4 B3 F1 F2 B2 B1"
    )


def test_one_segment_recomputes_nothing() -> None:
    graph = chain(7, seed=2)
    assert chen(graph, 10**9, segments=1).figures == baseline(graph)
    assert chen(graph, 10**9).figures == baseline(graph)


@given(st.integers(1, 15), st.integers(0, 10**6), st.floats(0.2, 1.1))
def test_the_fastest_number_of_segments_that_fits_is_taken(blocks: int, seed: int, part: float) -> None:
    graph = chain(blocks, seed=seed)
    budget = int(part * baseline(graph).peak)
    every = [chen(graph, 10**12, segments).figures for segments in range(1, blocks + 2)]
    fitting = [figures.time for figures in every if figures.peak <= budget]
    found = attempt("chen-sqrt", graph, budget)
    if isinstance(found, InfeasibleError):
        assert not fitting
        assert found.least == min(figures.peak for figures in every)
        return
    assert found.figures.time == min(fitting)
    assert simulate(graph, found.schedule, budget=budget).figures.peak <= budget


def test_memory_of_the_classic_choice_grows_with_the_root() -> None:
    """√L segments on equal blocks without parameters: 4 times the blocks, about twice the memory."""

    def beside_the_batch(blocks: int) -> float:
        graph = chain(blocks, uniform=True, parameters=False)
        return chen(graph, 10**12, segments=round(sqrt(blocks))).figures.peak / 2**20

    small, large = beside_the_batch(64), beside_the_batch(256)
    assert small < 4 * sqrt(64)
    assert large < 4 * sqrt(256)
    assert 1.9 < large / small < 2.4


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="chen-sqrt: segments must be 0"):
        chen(chain(3), 10**9, segments=-1)
