"""Moments for the next round of a bound: those in excess, the largest first, apart from each other."""

from __future__ import annotations

import numpy as np
import pytest
from exact import optimal_time
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Phase
from memplan.planner.baseline import baseline
from memplan.solvers.bounds.residency.moments import largest
from memplan.solvers.bounds.residency.residency import free_order_bound, residency_bound


def test_the_largest_excesses_are_taken_first() -> None:
    excess = np.array([0.0, 3.0, -1.0, 5.0, 1.0, 4.0])
    assert largest(excess, 10) == [3, 5, 1, 4]
    assert largest(excess, 2) == [3, 5]
    assert largest(-np.abs(excess), 2) == []


def test_no_two_are_close_to_each_other() -> None:
    excess = np.zeros(32)
    excess[[8, 9, 13, 14]] = (5.0, 6.0, 4.0, 3.0)
    assert largest(excess, 2) == [9, 14]


def tree(depth: int) -> Graph:
    """Return a training iteration of a binary tree: in backward most operations may run at any time."""
    draft, random = Draft("tree"), np.random.default_rng(depth)
    nodes = 2**depth - 1
    # Leaves come last in this numbering, and first in forward.
    made = [draft.tensor(f"a{node}", int(random.integers(8, 12))) for node in range(nodes)]
    for node in reversed(range(nodes)):
        children = [made[child] for child in (2 * node + 1, 2 * node + 2) if child < nodes]
        draft.operation(f"f{node}", time=float(random.integers(1, 4)), reads=children, writes=[made[node]])
    gradients: list[int] = []
    for node in range(nodes):
        above = gradients[(node - 1) // 2 : (node - 1) // 2 + 1] if node else []
        gradients.append(draft.tensor(f"g{node}", 1))
        draft.operation(
            f"b{node}",
            time=float(random.integers(2, 5)),
            reads=[*above, made[node]],
            writes=[gradients[node]],
            phase=Phase.BACKWARD,
        )
    return draft.graph()


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_a_tree_has_a_bound_in_any_order(share: float) -> None:
    """Moments of backward prove nothing there, that of the root's forward nearly all."""
    graph = tree(6)
    budget = int(share * baseline(graph).peak)
    time = baseline(graph).time
    traced = residency_bound(graph, budget, 5.0)
    free = free_order_bound(graph, budget, 5.0, moments=traced.moments, whole=False)
    assert (
        0.8 * (traced.bound.seconds - time) < free.bound.seconds - time <= traced.bound.seconds - time + 1e-9
    )
    assert free.bound.seconds > time


@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8, 0.9])
def test_no_bound_of_a_small_tree_is_above_its_optimum(share: float) -> None:
    graph = tree(2)
    budget = int(share * baseline(graph).peak)
    least = optimal_time(graph, budget)
    found = free_order_bound(graph, budget, 5.0).bound.seconds
    assert least is None or found <= least * (1 + 1e-9)
