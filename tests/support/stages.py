"""The least time of a graph in traced order, by a shortest path over states."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from memplan.graphs.graph import Graph

State = tuple[int, int, frozenset[tuple[int, int]]]
"""Stage, the last operation run in it, the contributions (tensor, producer) on the device."""


def least_time(graph: Graph, budget: int) -> float | None:
    """The optimum over all schedules in traced order, by a shortest path over states.

    Dropping a tensor is a move like running an operation, so nothing is assumed about when it is best
    deleted. Written from the rules alone: it knows neither the program nor the planner.
    """
    operations = [graph.operation(k) for k in range(len(graph.operations))]
    sizes = [int(size) for size in graph.tensors.bytes]
    resident = {x for x in range(len(sizes)) if graph.resident[x]}
    always = sum(sizes[x] for x in resident)
    parts = {
        x: frozenset((x, k) for k, operation in enumerate(operations) if x in operation.writes)
        for x in range(len(sizes))
        if x not in resident
    }

    def may_run_again(k: int, stage: int) -> bool:
        if operations[k].mutates or not operations[k].recompute:
            return False
        touched = {*operations[k].reads, *operations[k].writes}
        return not any(touched & set(operations[u].mutates) for u in range(k + 1, stage))

    def moves(stage: int, last: int, there: frozenset[tuple[int, int]]) -> Iterator[tuple[float, State]]:
        for x in {x for x, _k in there}:
            yield 0.0, (stage, last, there - parts[x])
        for k in range(last + 1, stage + 1):
            operation = operations[k]
            needs = {*operation.reads, *operation.mutates} - resident
            if (k < stage and not may_run_again(k, stage)) or not all(parts[x] <= there for x in needs):
                continue
            variants = [(operation.time, operation.workspace, operation.writes)]
            variants += [(mode.time, mode.workspace, mode.writes) for mode in operation.modes]
            for time, workspace, writes in variants:
                after = there | {(x, k) for x in writes}
                twice = sum(sizes[x] for x in writes if (x, k) in there)
                if always + sum(sizes[x] for x in {x for x, _k in after}) + workspace + twice <= budget:
                    yield time, (stage + 1, -1, after) if k == stage else (stage, k, after)

    first: State = (0, -1, frozenset())
    best: dict[State, float] = {first: 0.0}
    queue: list[tuple[float, int, State]] = [(0.0, 0, first)]
    results = frozenset[tuple[int, int]]().union(*(parts[x] for x in graph.results if x not in resident))
    while queue:
        time, _tie, state = heappop(queue)
        if time > best[state]:
            continue
        stage, last, there = state
        if stage == len(operations):
            if results <= there:
                return time
            continue
        for more, reached in moves(stage, last, there):
            if time + more < best.get(reached, float("inf")):
                best[reached] = time + more
                heappush(queue, (time + more, len(best), reached))
    return None
