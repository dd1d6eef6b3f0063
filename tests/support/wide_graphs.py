"""Small graphs of every magnitude: bytes from 1 to 2^50, times over 12 orders, budgets to the byte.

For bounds against exhaustive optima. Times are whole multiples of powers of two so near to each other that
sums of some dozens are exact in floats: the comparison needs no tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from random import Random

import numpy as np
from exact import optimal_time
from memplan.graphs.graph import Graph, Phase
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.bounds import backward_once, minimum_memory, time_bound
from memplan.solvers.bounds.lower_bounds import lower_bounds
from memplan.solvers.problem import Bound, Problem
from small_graphs import small_graph
from stages import least_time

SECONDS = 30.0
"""The most for the bounds of one graph: they end by themselves in a fraction of a second."""


def wide_graph(random: Random, operations: int = 6) -> Graph:
    """A graph whose baseline takes more than the least memory, at most times."""
    graph = _wide_graph(random, operations)
    while minimum_memory(graph) == baseline(graph).peak and random.random() < 0.95:
        graph = _wide_graph(random, operations)
    return graph


def _wide_graph(random: Random, operations: int) -> Graph:
    """Sizes and times of a small graph drawn anew; the last operations may be backward ones."""
    graph = small_graph(random)
    while not operations - 3 < len(graph.operations) <= operations:
        graph = small_graph(random)
    size, time = random.choice(SIZES), random.choice(TIMES)
    columns, count = graph.operations, len(graph.operations)
    modes = {
        operation: tuple(replace(mode, time=time(random), workspace=size(random)) for mode in row)
        for operation, row in columns.modes.items()
    }
    phase = columns.phase.copy()
    if random.random() < 0.5:
        phase[random.randint(1, count) :] = Phase.BACKWARD
    return replace(
        graph,
        tensors=replace(graph.tensors, bytes=_ints(size(random) for _ in graph.tensors.bytes)),
        operations=replace(
            columns,
            time=np.array([time(random) for _ in range(count)]),
            workspace=_ints(random.choice((0, 0, size(random))) for _ in range(count)),
            modes=modes,
            phase=phase,
        ),
    )


def _ints(values: Iterator[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([*values], np.int64)


SIZES = (
    lambda random: random.randint(0, 4),
    lambda random: random.randint(0, 2 ** random.randint(0, 50)),
    lambda random: 2 ** random.randint(0, 50) + random.randint(-1, 1),
    lambda random: random.choice((1, 4, 10, 100, 2**20, 2**40)),
    lambda random: 2**40 + random.randint(-3, 3),
)
TIMES = (
    lambda random: float(random.randint(0, 4)),
    lambda random: random.randint(0, 7) * 2.0 ** random.randint(-20, 20),
    lambda random: random.choice((0.0, 2.0**-20, 2.0**-20, 1.0, 2.0**20)),
    lambda random: 2.0**20 + random.randint(-3, 3) * 2.0**-20,
)


def exact_budget(random: Random, graph: Graph) -> int:
    """Between the least memory and the baseline's peak; most often what some tensors and a workspace take."""
    low, high = minimum_memory(graph), baseline(graph).peak
    if random.random() < 0.3:
        return random.choice((low, low + 1, high - 1, random.randint(low, high)))
    high = max(low, high - 1)
    sizes: list[int] = graph.tensors.bytes.tolist()
    always = int(graph.tensors.bytes[graph.resident].sum())
    chosen = sum(size for size in sizes if random.random() < 0.5)
    return min(max(low, always + chosen + random.choice((0, 0, -1, *graph.operations.workspace))), high)


def false_bounds(graph: Graph, budget: int) -> list[str]:
    """What is claimed of a problem without transfers, and an exhaustive search refutes.

    A bound of the operations' own times needs no search: every schedule runs each once.
    """
    problem, trivial = Problem(graph, max(1, int(budget))), time_bound(graph)
    faults = [
        f"{bound.seconds!r} s of {bound.name}, {bound.order} order, backward "
        f"{'again' if bound.backward_again else 'once'}: {least!r} s is possible within {problem.budget:,} B"
        for bound in lower_bounds(problem, baseline_schedule(graph), inf, SECONDS)
        if bound.seconds > trivial
        and (least := least_seconds(problem, bound)) is not None
        and bound.seconds > least
    ]
    min_memory = minimum_memory(graph)
    if 1 < min_memory < 2**30 and optimal_time(graph, min_memory - 1) is not None:
        faults.append(f"a schedule needs less than the least memory, {min_memory:,} B")
    return faults


def least_seconds(problem: Problem, bound: Bound) -> float | None:
    """Of the schedules for which the bound holds; None where there is none."""
    graph = problem.graph if bound.backward_again else backward_once(problem.graph)
    search = optimal_time if bound.order == "any" else least_time
    return search(graph, problem.budget)
