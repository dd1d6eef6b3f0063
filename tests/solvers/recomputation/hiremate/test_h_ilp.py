"""H-ILP: single operations against Checkmate, and what each part of the program does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.clusters.parts import parts
from memplan.graphs.generators import chain, unet
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.schedule.sequence import runs_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.milp import solve as milp
from memplan.solvers.milp.result import MilpStatus, Result, Settings
from memplan.solvers.problem import InfeasibleError, NotFoundError, Options, Problem
from memplan.solvers.recomputation.checkmate import checkmate
from memplan.solvers.recomputation.h_ilp.graph import HGraph, h_graph
from memplan.solvers.recomputation.h_ilp.level import options_of, selected
from memplan.solvers.recomputation.h_ilp.model import h_program
from memplan.solvers.recomputation.hierarchy.grid import Budgets
from memplan.solvers.recomputation.hierarchy.option import default_option
from memplan.solvers.recomputation.hierarchy.piece import Piece, part
from memplan.solvers.recomputation.hierarchy.tree import Branch, Tree, hierarchy_of
from memplan.solvers.recomputation.hiremate import h_ilp
from memplan.solvers.recomputation.hiremate.solve_levels import child
from training_graphs import training

EXACT = Settings(gap=0.0, threads=1)


def seconds_of(result: Result, scale: float) -> float | None:
    return None if result.objective is None else result.objective * scale


def backward_once(graph: Graph) -> Graph:
    """Only what runs before the loss may run again."""
    repeats = np.zeros(len(graph.operations), np.bool_)
    ahead = parts(graph).forward
    repeats[ahead] = graph.operations.recompute[ahead]
    return replace(graph, operations=replace(graph.operations, recompute=repeats))


def in_order(schedule: Schedule) -> bool:
    first = list(dict.fromkeys(operation for operation, _mode in runs_of(schedule)))
    return first == sorted(first)


@pytest.mark.scripts
@settings(max_examples=25)
@given(
    graph=st.one_of(
        st.builds(chain, st.integers(3, 8), seed=st.integers(0, 10**6)),
        st.builds(unet, st.integers(1, 2), seed=st.integers(0, 10**6)),
        st.builds(
            training,
            st.integers(1, 2),
            st.integers(0, 10**6),
            skip=st.sampled_from((0.0, 0.5)),
            update=st.sampled_from(("none", "end", "early")),
        ),
    ).map(backward_once),
    share=st.floats(0.05, 0.9),
)
def test_without_clusters_it_is_checkmate(graph: Graph, share: float) -> None:
    """Thesis, 3.5.4: without a partition H-ILP is Rk-Checkmate, so optimal for the order of operations.

    Backward operations run once in both. Checkmate's answers in another order than the file's, which come
    from its starts, don't count.
    """
    low, high = minimum_memory(graph), baseline(graph).peak
    problem = Problem(graph, int(low + (high - low) * share))
    times: list[float | None] = []
    for module, setting in (
        (checkmate, checkmate.Settings(gap=0.0, threads=1)),
        (h_ilp, h_ilp.Settings(top=300, gap=0.0, cache="off")),
    ):
        try:
            answer = module.solve(problem, Options(20.0, setting))
        except NotFoundError:
            return
        except InfeasibleError:
            times.append(None)
        else:
            if not in_order(answer.schedule):
                return
            times.append(simulate(graph, answer.schedule, budget=problem.budget).figures.time)
    exact, own = times
    assert own == (None if exact is None else pytest.approx(exact, rel=1e-7))


@cache
def cluster(seed: int) -> tuple[Piece, HGraph]:
    """The first three of a chain's six blocks as a cluster of single operations."""
    graph = chain(6, seed=seed, parameters=False, fast_forward=False)
    forward, backward = (0, 1, 2), (10, 11, 12)
    rest = tuple(Branch((o,), (12 - o,)) for o in (3, 4, 5))
    tree = Tree((Branch(forward, backward), *rest), (6,), ())
    (inner, _spec), *_ = hierarchy_of(graph, tree).top
    alone = child(part(inner.piece, range(3), range(3, 6)), [])
    return inner.piece, h_graph(inner.piece, [alone])


def least_seconds(graph: HGraph, peak: int, save: int | None = None) -> float | None:
    program = h_program(graph, peak, save)
    result = milp.solve(program.program, EXACT)
    assert result.status in (MilpStatus.OPTIMAL, MilpStatus.INFEASIBLE)
    return None if result.objective is None else result.objective * program.seconds


@pytest.mark.parametrize("seed", range(4))
def test_tighter_limits_never_save_time(seed: int) -> None:
    piece, graph = cluster(seed)
    most = sum(piece.sizes)
    plain = default_option(piece)
    assert least_seconds(graph, most) == pytest.approx(plain.time)
    for peaks in (True, False):
        times = [
            least_seconds(graph, most * k // 10 if peaks else most, None if peaks else most * k // 10)
            for k in range(10, -1, -1)
        ]
        found = [time for time in times if time is not None]
        assert found == sorted(found)
        assert times[len(found) :] == [None] * (len(times) - len(found)), "feasible below what is not"
        assert found[-1] > found[0], "no limit ever mattered"


@pytest.mark.scripts
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_options_keep_their_budgets(seed: int) -> None:
    graph = training(3, seed)
    forward = [o for o in range(len(graph.operations)) if graph.operations.phase[o] == 0]
    backward = [o for o in range(len(graph.operations)) if graph.operations.phase[o] == 2]
    middle = tuple(o for o in range(len(graph.operations)) if graph.operations.phase[o] == 1)
    branch = Branch(tuple(forward), tuple(backward))
    (inner, _spec), *_ = hierarchy_of(graph, Tree((branch,), middle, ())).top
    piece = inner.piece
    alone = child(part(piece, range(piece.forward), range(piece.forward, piece.operations)), [])
    options, _complete = options_of(piece, [alone], Budgets(2, 3), 5.0)
    plain = default_option(piece)
    assert min(option.time for option in options) == pytest.approx(plain.time)
    for option in options:
        assert option.saved <= plain.saved
        assert option.turn.time <= option.recompute.time <= option.first.time
        assert option.saved == sum(piece.sizes[x] for x in option.backward.starts)
    assert len(selected([child(inner, options)], 2)[0].options) <= 2


def top_of(graph: Graph, clusters: int) -> HGraph:
    """A chain's H-graph, its blocks in clusters with their plain options and no others."""
    blocks = (len(graph.operations) - 1) // 2
    size = blocks // clusters
    branches = [
        Branch(
            tuple(range(i * size, (i + 1) * size)),
            tuple(range(2 * blocks + 1 - (i + 1) * size, 2 * blocks + 1 - i * size)),
        )
        for i in range(clusters)
    ]
    hierarchy = hierarchy_of(graph, Tree(tuple(branches), (blocks,), ()))
    children = [child(inner, [default_option(inner.piece)]) for inner, _spec in hierarchy.top]
    return h_graph(hierarchy.root.piece, children, hierarchy.middle)


@pytest.mark.parametrize("seed", range(4))
def test_correction_terms_count_less_and_never_too_little(seed: int) -> None:
    """(3.34) against (3.33): the least memory by either, and by the simulator on the corrected answer."""
    graph = chain(6, seed=seed, parameters=False)
    top = top_of(graph, 3)
    least: list[float] = []
    for corrected in (False, True):
        most = 10 * int(graph.tensors.bytes.sum())
        program = h_program(top, most, corrected=corrected, least=True)
        result = milp.solve(program.program, EXACT)
        assert result.objective is not None
        least.append(result.objective / 1000 * most)
    assert least[1] < least[0]
    always = int(graph.tensors.bytes[graph.resident].sum())
    assert least[1] + always >= minimum_memory(graph) * (1 - 1e-9)


def test_a_child_runs_forward_and_backward_with_the_same_option() -> None:
    graph = chain(6, seed=1, parameters=False)
    top = top_of(graph, 3)
    limit = int(graph.tensors.bytes.sum())
    for share in (1.0, 0.6, 0.5):
        program = h_program(top, int(limit * share), corrected=True)
        result = milp.solve(program.program, EXACT)
        if result.x is None:
            continue
        chosen = program.chosen(result.x)
        for pair, backward in top.backward_of.items():
            made = [c.option for (_t, k), c in chosen.items() if top.nodes[k].pair == pair and k < top.loss]
            assert [option for option in made if option is not None] == [chosen[backward, backward].option]
        assert sum(k == top.loss for _t, k in chosen) == 1
