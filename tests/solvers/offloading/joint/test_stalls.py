"""Where the device waits: all waits together are what the period is longer than the computation."""

from __future__ import annotations

from random import Random

import pytest
from joint_graphs import GRAPHS, LINKED
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.offloading.joint.stalls import Stalls
from memplan.solvers.offloading.joint.state import State


@pytest.mark.parametrize("name", GRAPHS)
def test_waits_and_computation_make_the_period(name: str) -> None:
    graph, random = GRAPHS[name], Random(0)
    state = State(graph, LINKED, 2**50, Drops(graph).runs, all_offloaded=True)
    for _ in range(5):
        outcome = state.evaluate(random.choice((1.0, 3.0)))
        waits = state.waits(outcome)
        assert (waits >= 0).all()
        assert waits.sum() == pytest.approx(outcome.seconds - state.starts[-1], rel=1e-6)
        state.keep(random.sample(sorted(state.offloaded), len(state.offloaded) // 3))


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_drawn_is_away_and_nothing_where_nothing_waits(name: str) -> None:
    graph = GRAPHS[name]
    state = State(graph, LINKED, 2**50, Drops(graph).runs, all_offloaded=True)
    outcome, stalls = state.evaluate(1.0), Stalls(state, Random(1))
    drawn = [stalls.interval(outcome) for _ in range(40)]
    places = {interval.place for interval in drawn if interval}
    assert places
    assert places <= state.offloaded.keys() & {interval.place for interval in state.intervals}
    state.keep(list(state.offloaded))
    assert Stalls(state, Random(1)).interval(state.evaluate(1.0)) is None
