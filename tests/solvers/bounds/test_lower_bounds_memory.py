"""What the bounds of a large graph take of memory: bytes an operation, counted by tracemalloc."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from math import inf

import pytest
from memplan.graphs.files.files import graph_digest
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.solvers.bounds.residency.search import ResidencyBoundSearch

MOST_BOUND = 1250
"""Measured: 890; 2,570 were taken while edges were lists and arcs 64 bits."""

MOST_DIGEST = 250
"""Measured: 100; 1,480 were taken while the whole document was made for it."""


def graph_of(blocks: int) -> Graph:
    return chain(blocks, parameters=False, fast_forward=False)


def peak_bytes(action: Callable[[], object]) -> int:
    """Above what is there before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bound(graph: Graph) -> ResidencyBoundSearch:
    search = ResidencyBoundSearch(graph, baseline(graph).peak // 2, "file", inf)
    search.run(whole=False)
    return search


@pytest.mark.scripts
def test_bounds_and_digests_take_few_bytes_an_operation() -> None:
    bound(graph_of(100))  # has the code compiled
    graph = graph_of(10_000)
    baseline(graph)
    count = len(graph.operations)
    assert peak_bytes(lambda: bound(graph)) < MOST_BOUND * count
    assert peak_bytes(lambda: graph_digest(graph)) < MOST_DIGEST * count
