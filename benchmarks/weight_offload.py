"""Weight offloading beside its paper's figures (papers/weight_offloading.py): 3-partition, long chains.

`partition`: m, how many of the seeds 0, 1, … end without idle time, worst and mean seconds; then how many of
two unsolvable ones claim that. `speed`: chains of 128 and 1,000 layers, the greedy alone, where 60 % of the
weights must leave: its seconds, and those of one simulation of its answer. Compiled code is loaded before.

    python benchmarks/weight_offload.py {partition,speed} [seconds] [seeds]
"""

from __future__ import annotations

import sys
from time import perf_counter

from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import SGD, with_updates
from memplan.instances.three_partition import solvable, unsolvable
from memplan.planner.baseline import baseline
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry

COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20)


def partition(seconds: float, seeds: int) -> None:
    print("| m | solvable, without idle time | worst s | mean s | unsolvable, claimed |")
    print("|---" * 5 + "|")
    for count in COUNTS:
        full, times, claimed = 0, list[float](), 0
        for seed in range(seeds):
            case = solvable(count, seed)
            found = registry.solve("offload-greedy", Problem(case.graph(), case.budget), seconds)
            full += found.figures.time <= case.seconds * (1 + 1e-9)
            times.append(found.seconds)
            if count > 1 and seed < 2:
                no = unsolvable(count, seed)
                found = registry.solve("offload-greedy", Problem(no.graph(), no.budget), 1.0)
                claimed += found.figures.time <= no.seconds * (1 + 1e-9)
        cells = (count, f"{full} of {seeds}", f"{max(times):.2f}", f"{sum(times) / seeds:.2f}", claimed)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def speed() -> None:
    print("| layers | weights a turn that a link moves | over Σ u | seconds | simulation, seconds |")
    print("|---" * 5 + "|")
    for layers in (128, 1000):
        graph = with_updates(chain(layers, seed=1), optimizer=SGD, when="in-backward", device_rate=1e12)
        weights = float(graph.tensors.bytes[graph.persistent].sum())
        total = float(graph.operations.time.sum())
        peak = baseline(graph).peak
        for part in (4.0, 1.0, 0.25):
            links = Links(d2h=part * weights / total, h2d=part * weights / total)
            problem = Problem(graph, int(peak - 0.6 * weights), Machine(links=links))
            found = registry.solve("offload-greedy", problem, settings={"moves": "0"}, bound_seconds=0)
            start = perf_counter()
            simulate(graph, found.schedule, budget=problem.budget, machine=problem.machine)
            cells = (
                f"{found.figures.time / total:.4f}",
                f"{found.seconds:.2f}",
                f"{perf_counter() - start:.2f}",
            )
            print(f"| {layers} | {part:g} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "partition"
    load = solvable(2, 0)
    registry.solve("offload-greedy", Problem(load.graph(), load.budget), 1.0)
    if what == "partition":
        seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
        partition(seconds, int(sys.argv[3]) if len(sys.argv) > 3 else 10)
    else:
        speed()


if __name__ == "__main__":
    main()
