"""tw-remat: separators separate, memory is logarithmic on narrow graphs, every answer holds."""

from __future__ import annotations

from itertools import pairwise
from math import log2
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.repeats import without_most_repeats, without_repeats
from memplan.planner.schedule.sequence import Run, schedule_of
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.solvers.problem import InfeasibleError, NotFoundError, Options, Problem, Status
from memplan.solvers.recomputation.tw_remat import tw_remat
from memplan.solvers.recomputation.tw_remat.order import Dependencies, order
from memplan.solvers.recomputation.tw_remat.tree import Piece, taken_apart
from strategies import random_graph


def pieces(piece: Piece) -> list[Piece]:
    return [piece, *(below for part in piece.parts for below in pieces(part))]


def depth(piece: Piece) -> int:
    return 1 + max(map(depth, piece.parts), default=0)


def papers(graph: Graph) -> tuple[list[Run], Figures]:
    """The schedule of the paper, where no piece keeps what it makes."""
    dependencies = Dependencies(graph)
    sizes = [1] * len(graph.operations)
    root = taken_apart(dependencies.inner)
    runs = order(dependencies, root, sizes, 0, 10**6)
    return runs, simulate(graph, schedule_of(graph, runs)).figures


def training_chain(length: int) -> Graph:
    """f_1 … f_n, then b_n … b_1, where b_i reads b_{i+1} and f_i; each makes one byte in one second."""
    draft = Draft(f"chain {length}")
    made: list[int] = []
    for i in range(length):
        made.append(draft.tensor(f"x{i}", 1))
        draft.operation(f"f{i}", time=1.0, reads=made[-2:-1], writes=[made[-1]])
    gradient: list[int] = []
    for i in reversed(range(length)):
        reads = [made[i], *gradient]
        gradient = [draft.tensor(f"g{i}", 1)]
        draft.operation(f"b{i}", time=1.0, reads=reads, writes=gradient)
    return draft.graph()


@settings(max_examples=100)
@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 10**6), st.booleans())
def test_a_separator_leaves_no_edge_between_its_parts(n: int, width: int, seed: int, fill_in: bool) -> None:
    inner = Dependencies(layered(n, seed=seed, width=width)).inner
    root = taken_apart(inner, fill_in=fill_in)
    assert root.members == tuple(range(n))
    for piece in pieces(root):
        everything = [*piece.separator, *(k for part in piece.parts for k in part.members)]
        assert sorted(everything) == list(piece.members)
        home = {k: place for place, part in enumerate(piece.parts) for k in part.members}
        for k in home:
            assert all(home[k] == home[p] for p in inner[k] if p in home)


@pytest.mark.parametrize("length", [1, 2, 10, 100, 1000])
def test_a_path_is_halved_again_and_again(length: int) -> None:
    root = taken_apart({k: [k - 1] if k else [] for k in range(length)})
    for piece in pieces(root):
        assert len(piece.separator) <= 2
        assert all(len(part.members) <= len(piece.members) / 2 for part in piece.parts)
    assert depth(root) <= log2(length) + 1


@pytest.mark.parametrize("levels", [3, 6, 9])
def test_a_tree_is_halved_again_and_again(levels: int) -> None:
    root = taken_apart(
        {k: [k for k in (2 * k + 1, 2 * k + 2) if k < 2**levels - 1] for k in range(2**levels - 1)}
    )
    assert all(len(piece.separator) <= 2 for piece in pieces(root))
    assert depth(root) <= levels + 1


def test_no_operations_no_pieces() -> None:
    assert taken_apart({}) == Piece((), (), ())


def test_a_training_chain_takes_logarithmic_memory() -> None:
    """Plainly n + 1. Its treewidth is 2: never more than three tensors a level; half of that is enough."""
    for length in (8, 16, 32, 64, 128, 256):
        graph = training_chain(length)
        assert baseline(graph).peak == length + 1
        runs, figures = papers(graph)
        assert figures.peak <= 1.5 * log2(length) + 1
        assert len(runs) <= length * log2(length)


def test_memory_grows_by_a_constant_when_a_chain_doubles() -> None:
    peaks = [papers(training_chain(2**power))[1].peak for power in range(3, 10)]
    assert all(after - before <= 2 for before, after in pairwise(peaks))


@settings(max_examples=300)
@given(st.integers(0, 10**9), st.integers(1, 25))
def test_any_graph_gets_a_valid_schedule_with_every_leaf_size(seed: int, most: int) -> None:
    """Changes in place, contributions, random numbers, operations that run once: the simulator takes all."""
    graph = random_graph(Random(seed), most)
    for runs in tw_remat.sequences(graph, 3):
        figures = simulate(graph, schedule_of(graph, runs)).figures
        quick = without_repeats(graph, runs, figures.peak, lambda: True)
        for fewer in (quick, without_most_repeats(graph, runs, figures.peak, 10, lambda: True)):
            after = simulate(graph, schedule_of(graph, fewer)).figures
            assert after.time <= figures.time
            assert after.peak <= figures.peak


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("graph", "percent", "most"),
    [
        (unet(4), 80, 1.15),
        (chain(16, uniform=True, parameters=False), 50, 1.25),
        (training_chain(100), 25, 1.8),
    ],
    ids=["unet", "chain", "training chain"],
)
def test_the_budget_is_used(graph: Graph, percent: int, most: float) -> None:
    plain = baseline(graph)
    budget = plain.peak * percent // 100
    answer = tw_remat.solve(Problem(graph, budget), Options())
    figures = simulate(graph, answer.schedule, budget=budget).figures
    assert answer.status == Status.HEURISTIC
    assert plain.time < figures.time <= most * plain.time


def test_what_the_leaves_may_keep_makes_the_sequence_shorter() -> None:
    graph = training_chain(64)
    lengths = [len(runs) for runs in tw_remat.sequences(graph, 4)]
    assert lengths[0] > lengths[3] > 2 * 64


def test_the_refusal_names_the_least_budget_and_the_floor() -> None:
    graph = unet(3)
    with pytest.raises(InfeasibleError) as refusal:
        tw_remat.solve(Problem(graph, minimum_memory(graph) - 1), Options())
    least = refusal.value.least
    assert least is not None
    assert refusal.value.min_memory == minimum_memory(graph) <= least
    assert tw_remat.solve(Problem(graph, least), Options())


def too_little(graph: Graph, options: Options) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as refusal:
        tw_remat.solve(Problem(graph, 0), options)
    return refusal.value


@settings(max_examples=100)
@given(st.integers(0, 10**9), st.integers(1, 25))
def test_the_least_budget_that_a_refusal_names_is_reached(seed: int, most: int) -> None:
    """Cut short it claims none, since how far it gets depends on the moment: it tells what it has found."""
    graph = random_graph(Random(seed), most)
    whole, short = too_little(graph, Options()), too_little(graph, Options(0.0))
    assert whole.least is not None
    answer = tw_remat.solve(Problem(graph, whole.least), Options())
    assert simulate(graph, answer.schedule, budget=whole.least)
    assert isinstance(short, NotFoundError)
    assert short.found is not None
    assert short.least is None
    assert short.found >= whole.least


def test_no_time_at_all_still_gives_a_schedule() -> None:
    graph = training_chain(64)
    answer = tw_remat.solve(Problem(graph, 40), Options(0.0))
    assert simulate(graph, answer.schedule, budget=40)


def test_negative_steps_are_refused() -> None:
    with pytest.raises(InputError, match=r"^steps must be 0 or more, not -1$"):
        tw_remat.Settings(-1)


def test_more_steps_than_bytes_have_digits_add_nothing() -> None:
    graph = training_chain(16)
    assert list(tw_remat.sequences(graph, 2**31)) == list(tw_remat.sequences(graph, 64))
