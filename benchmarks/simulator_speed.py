"""How fast a schedule is replayed.

Protocol: the schedules are made first; each is simulated three times in this process, the median counts
(CPU seconds: the simulator runs on one thread).
`plain`: a layered random graph's plain schedule, computations and deletes only, walked once.
`recomputed`: a chain of blocks; each of its √n segments runs forward again before its backward.
`offloaded`: a chain of blocks; every saved tensor goes to the host after its forward and comes back one
block early, with the least budget: transfers, pending deletes, the steady state found by repeated turns.
Usage: python benchmarks/simulator_speed.py [steps …]     (default 10000 100000 1000000)
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from math import isqrt

from memplan.graphs.generators import chain, layered
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.schedule import Schedule, ScheduleStep, compute, delete, offload, prefetch
from memplan.planner.schedule.sequence import in_default_mode, schedule_of
from memplan.planner.simulator.simulate import simulate

MACHINE = Machine(links=Links(d2h=12e9, h2d=12e9))


def baseline(steps: int) -> tuple[Graph, Schedule]:
    graph = layered(steps // 2)
    return graph, baseline_schedule(graph)


def recomputed(steps: int) -> tuple[Graph, Schedule]:
    """Eight steps a block: F, F again, B and their deletes."""
    blocks = steps // 8
    graph = chain(blocks, uniform=True, parameters=False, fast_forward=False)
    length = isqrt(blocks)
    runs = [*range(blocks + 1)]
    for last in range(blocks, 0, -length):
        first = max(0, last - length)
        runs += range(first, last)
        runs += range(2 * blocks + 1 - last, 2 * blocks + 1 - first)
    return graph, schedule_of(graph, in_default_mode(runs))


def offloaded(steps: int) -> tuple[Graph, Schedule]:
    """Ten steps a block: F, offload, delete, and on the way back prefetch, two deletes, B, three deletes."""
    blocks = steps // 10
    graph = chain(blocks, uniform=True, parameters=False, fast_forward=False)
    return graph, Schedule.of(_offloaded_chain(graph, blocks))


def _offloaded_chain(graph: Graph, blocks: int) -> Iterator[ScheduleStep]:
    x = [graph.tensor_index[f"x{i}"] for i in range(blocks + 1)]
    saved = [graph.tensor_index[f"a{i}"] for i in range(1, blocks + 1)]
    gradients = [graph.tensor_index[f"g{i}"] for i in range(blocks, 0, -1)]
    for i in range(blocks):
        yield compute(i)
        yield offload(saved[i])
        yield delete(saved[i])
    yield compute(blocks)
    yield prefetch(saved[-1])
    for backward in range(blocks):
        i = blocks - 1 - backward
        if i:
            yield prefetch(saved[i - 1])
        yield compute(blocks + 1 + backward)
        for gone in (saved[i], x[i + 1], gradients[backward]):
            yield delete(gone)
        yield delete(saved[i], Memory.HOST)


def seconds(graph: Graph, schedule: Schedule, budget: int | None) -> float:
    runs: list[float] = []
    for _ in range(3):
        start = time.process_time()
        simulate(graph, schedule, budget=budget, machine=MACHINE)
        runs.append(time.process_time() - start)
    return statistics.median(runs)


def main() -> None:
    kinds: list[Callable[[int], tuple[Graph, Schedule]]] = [baseline, recomputed, offloaded]
    print("| schedule | steps | seconds | microseconds a step |\n|---|---|---|---|")
    for size in [int(word) for word in sys.argv[1:]] or [10_000, 100_000, 1_000_000]:
        for kind in kinds:
            graph, schedule = kind(size)
            budget = simulate(graph, schedule, machine=MACHINE).figures.least_budget
            took = seconds(graph, schedule, budget)
            name, each = kind.__name__, 1e6 * took / len(schedule)
            print(f"| {name} | {len(schedule):,} | {took:.2f} | {each:.1f} |", flush=True)


if __name__ == "__main__":
    main()
