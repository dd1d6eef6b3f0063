"""When the search for a bound has proven a time."""

from __future__ import annotations

from math import inf

import pytest
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline
from memplan.planner.bounds import time_bound
from memplan.solvers.bounds.residency.search import ResidencyBoundSearch


@pytest.mark.parametrize(("above", "proven"), [(1.0, True), (1.0 + 1e-7, True), (1.01, False), (inf, False)])
def test_a_time_is_proven_if_the_bound_reaches_it(above: float, proven: bool) -> None:
    graph = chain(4)
    search = ResidencyBoundSearch(graph, baseline(graph).peak, "file", inf, goal=time_bound(graph) * above)
    assert search.proven == proven
