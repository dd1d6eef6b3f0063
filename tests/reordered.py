"""The same problem with its operations in another order that the dependencies allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from memplan.graphs.draft import Draft
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


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    draft = Draft(graph.name)
    for x in range(len(graph.tensors)):
        tensor = graph.tensor(x)
        draft.tensor(tensor.name, tensor.bytes, tensor.kind)
    for o in order:
        one = graph.operation(o)
        draft.operation(
            one.name,
            time=one.time,
            reads=one.reads,
            writes=one.writes,
            mutates=one.mutates,
            phase=one.phase,
            workspace=one.workspace,
            recompute=one.recompute,
            random=one.random,
            modes=one.modes,
            launch=one.launch,
        )
    return replace(draft.graph(graph.results), machine=graph.machine)
