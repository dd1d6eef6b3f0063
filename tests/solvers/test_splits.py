"""The choice among splits against enumeration, and the bound of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random

import pytest
from exact import optimal_time
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.solvers.problem import InfeasibleError, NotAcceptedError
from memplan.solvers.splits import WORTH_ROUNDING, bound_of_all, fastest
from split_graphs import split_graphs

seeds = st.integers(0, 10**6)


class Solver:
    """An exhaustive search that keeps what it was asked for."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.times: dict[int, float] = {}

    def __call__(self, graph: Graph, number: int | None) -> tuple[float, int]:
        seconds = optimal_time(graph, self.budget)
        self.times[number or 0] = inf if seconds is None else seconds
        if seconds is None:
            raise InfeasibleError("exhaustive", self.budget, minimum_memory(graph), minimum_memory(graph))
        return seconds, number or 0


def budgets(graphs: list[Graph], random: Random) -> int:
    """Return a budget between the least of any graph and the whole one's peak."""
    return random.randint(min(map(minimum_memory, graphs)) - 1, baseline(graphs[0]).peak)


@given(seed=seeds, exact=st.booleans())
@settings(max_examples=25)
def test_the_fastest_of_all_splits_is_taken(seed: int, exact: bool) -> None:
    random = Random(seed)
    graphs = split_graphs(random)
    solve = Solver(budgets(graphs, random))
    rated = [
        (optimal_time(graph, solve.budget) or inf) * (1.0 if exact or not k else WORTH_ROUNDING)
        for k, graph in enumerate(graphs)
    ]
    numbered = ((graph, k) for k, graph in enumerate(graphs[1:], 1))
    if min(rated) == inf:
        with pytest.raises(InfeasibleError) as refusal:
            fastest(graphs[0], numbered, solve, exact=exact, measured=True)
        assert refusal.value.least == min(map(minimum_memory, graphs))
    else:
        assert rated[fastest(graphs[0], numbered, solve, exact=exact, measured=True)] == min(rated)
    # Graphs that were not solved have the bound of their operations' time alone.
    optimum = min(optimal_time(graph, solve.budget) or inf for graph in graphs)
    assert bound_of_all(graphs, None, solve.times) <= optimum
    assert bound_of_all(
        graphs, None, {k: optimal_time(g, solve.budget) or inf for k, g in enumerate(graphs)}
    ) == (optimum)


@given(seed=seeds)
@settings(max_examples=25)
def test_graphs_made_as_they_are_asked_for_end_where_nothing_is_gained(seed: int) -> None:
    random = Random(seed)
    graphs = split_graphs(random)
    solve = Solver(budgets(graphs, random))
    asked: list[int] = []

    def made() -> Iterator[tuple[Graph, int]]:
        for k, graph in enumerate(graphs[1:], 1):
            asked.append(k)
            yield graph, k

    try:
        chosen = fastest(graphs[0], made(), solve, exact=True)
    except InfeasibleError:
        return
    assert solve.times[chosen] == min(solve.times.values())
    # One graph more than the fastest was made, unless that could not be faster.
    later = [k for k in asked if k > chosen]
    assert len(later) <= 1
    if not later and chosen < len(graphs) - 1:
        assert solve.times[chosen] <= 1.005 * time_bound(graphs[chosen])


def test_a_solver_that_takes_whole_graphs_alone_has_no_splits() -> None:
    graphs = split_graphs(Random(1))

    def solve(graph: Graph, number: int | None) -> tuple[float, int]:
        if number is not None:
            raise NotAcceptedError("chains alone")
        return 1000.0, 0

    numbered = ((graph, k) for k, graph in enumerate(graphs[1:], 1))
    assert fastest(graphs[0], numbered, solve, exact=True, measured=True) == 0


def test_a_split_that_a_solver_does_not_take_is_left_out() -> None:
    graphs = split_graphs(Random(1))

    def solve(graph: Graph, number: int | None) -> tuple[float, int]:
        if number == 1:
            raise NotAcceptedError("this region")
        return (1000.0, 900.0, 900.0, 800.0)[number or 0], number or 0

    numbered = ((graph, k) for k, graph in enumerate(graphs[1:], 1))
    assert fastest(graphs[0], numbered, solve, exact=True, measured=True) == 3


@pytest.mark.parametrize(
    ("times", "exact", "chosen"),
    [
        ((1000.0, 990.0, 985.0, 1100.0), True, 2),
        ((1000.0, 990.0, 985.0, 1100.0), False, 0),
        ((1000.0, 990.0, 970.0, 1100.0), False, 2),
        ((1000.0, 970.0, 970.0, 969.0), False, 3),
    ],
)
def test_other_bits_must_be_worth_three_percent(times: tuple[float, ...], exact: bool, chosen: int) -> None:
    graphs = split_graphs(Random(1))

    def solve(graph: Graph, number: int | None) -> tuple[float, int]:
        return times[number or 0], number or 0

    numbered = ((graph, k) for k, graph in enumerate(graphs[1:], 1))
    assert fastest(graphs[0], numbered, solve, exact=exact, measured=True) == chosen
