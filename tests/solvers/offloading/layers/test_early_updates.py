"""Updates run early, in an order that holds: for odd graphs too."""

from __future__ import annotations

from random import Random

import pytest
from memplan.graphs.structure.chain import chain_of
from memplan.graphs.structure.valid_order import is_valid_order
from memplan.planner.schedule.sequence import in_default_mode
from memplan.solvers.offloading.layers.early_updates import early_updates
from memplan.solvers.offloading.offmate.graph import updates_moved
from odd_graphs import odd_graph


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(3))
def test_early_updates_keep_an_order_that_is_valid(batch: int) -> None:
    for seed in range(200 * batch, 200 * batch + 200):
        graph = odd_graph(Random(seed))
        runs = early_updates(graph, in_default_mode(range(len(graph.operations))))
        order = [operation for operation, _mode in runs]
        assert sorted(order) == list(range(len(graph.operations))), seed
        assert is_valid_order(graph, order), seed
        moved = updates_moved(graph, chain_of(graph)).order()
        assert sorted(moved) == sorted(order), seed
        assert is_valid_order(graph, moved), seed
