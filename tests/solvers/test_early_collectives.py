"""The order of collectives: its peak is the simulator's, and what it moves stays a valid schedule."""

from __future__ import annotations

from random import Random

import numpy as np
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.clock import Clock
from memplan.solvers.early_collectives import _Order, with_early_collectives
from recomputing import recomputing
from small_graphs import small_graph
from strategies import with_comm


def test_the_peak_of_an_order_is_the_least_budget_of_its_schedule() -> None:
    """Of tensors that one operation makes; moved runs fit in the same bytes."""
    checked = moved = 0
    for seed in range(150):
        random = Random(seed)
        graph = with_comm(random, small_graph(random), 0.8)
        if not graph.operations.comm or graph.producers.counts().max() > 1:
            continue
        schedule = recomputing(graph, random)
        try:
            before = simulate(graph, schedule).figures
        except InvalidScheduleError:  # an operation that runs once was recomputed
            continue
        order = _Order(graph, schedule, before.least_budget)
        assert order._peak(np.arange(len(order.runs))) == before.least_budget, seed
        improved = with_early_collectives(graph, schedule, before.least_budget, Clock(None))
        assert simulate(graph, improved).figures.least_budget <= before.least_budget, seed
        checked, moved = checked + 1, moved + (list(improved) != list(schedule))
    assert checked > 30
    assert moved > 3
