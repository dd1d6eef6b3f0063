"""Orders of operations that the dependencies allow."""

from __future__ import annotations

from random import Random

from memplan.graphs.graph import Graph
from memplan.solvers.bounds.residency.order import predecessors


def random_order(random: Random, graph: Graph) -> list[int]:
    """Of its operations; random ones, and those before and after a change in place, stay as they are."""
    before = predecessors(graph)
    order: list[int] = []
    while len(order) < len(before):
        ready = [o for o, row in enumerate(before) if o not in order and {*row} <= {*order}]
        order.append(random.choice(ready))
    return order
