"""How high the lower bounds are, how long they take, and how near a schedule comes to them.

Protocol: for each graph and budget (percent of the plain peak) `residency_schedule` for the file's order, and
`free_order_bound` from its moments, each with `--seconds`. Reported: time above the plain schedule's that
every schedule must take (file's order, any order), that of the schedule met on the way, the moments looked
at, and wall-clock seconds. "none": no schedule exists.
`--fractions`: the bounds in fractions alone, by minimum cuts, the median seconds of three.
`--links`: the offloading bounds for any order and for the file's, on the graph's machine or with links of so
many bytes a second, beside the time of all operations; all over the plain schedule's time.
Usage: python benchmarks/bounds_speed.py [--seconds 10] [--budgets 75%,10GB] [--fractions | --links [RATE]]
FILE…
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter

from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import time_bound
from memplan.planner.budget import Budget, parse_budget
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from memplan.solvers.bounds.residency.residency import free_order_bound
from memplan.solvers.bounds.residency.schedule import residency_schedule
from memplan.solvers.bounds.residency.search import ResidencyBoundSearch


def row(graph: Graph, wanted: Budget, seconds: float) -> str:
    plain = baseline(graph)
    budget = wanted.bytes_of(plain.peak, graph.resident_bytes)

    def above(time: float) -> str:
        return "none" if time == inf else f"{100 * (time / plain.time - 1):.2f}"

    start = perf_counter()
    fixed = residency_schedule(graph, budget, seconds)
    middle = perf_counter()
    goal = fixed.schedule.time if fixed.schedule else inf
    free = free_order_bound(graph, budget, seconds, goal, fixed.moments)
    end = perf_counter()
    met = above(fixed.schedule.time) if fixed.schedule else "–"
    cells = [
        graph.name,
        len(graph.operations),
        wanted.text,
        above(fixed.bound.seconds),
        above(free.bound.seconds),
    ]
    cells += [met, len(fixed.moments), f"{middle - start:.1f}", f"{end - middle:.1f}"]
    return f"| {' | '.join(map(str, cells))} |"


def fractions(graph: Graph, budget: Budget) -> str:
    plain = baseline(graph)
    cells = [graph.name, len(graph.operations), budget.text]
    for order in ("file", "any"):
        seconds: list[float] = []
        for _ in range(3):
            start = perf_counter()
            search = ResidencyBoundSearch(
                graph, budget.bytes_of(plain.peak, graph.resident_bytes), order, inf
            )
            search.run(whole=False)
            seconds.append(perf_counter() - start)
        extra = search.best.extra
        cells += ["none" if extra == inf else f"{100 * extra / plain.time:.3f}", f"{median(seconds):.2f}"]
    return f"| {' | '.join(map(str, cells))} |"


def linked(graph: Graph, budget: Budget, rate: float, seconds: float) -> str:
    machine, plain = graph.machine or Machine(), baseline(graph)
    if rate:
        machine = replace(machine, links=replace(machine.links, d2h=rate, h2d=rate))
    offload = machine.links.d2h
    cells = [graph.name, len(graph.operations), budget.text, f"{offload.rate / 1e9:.3g}" if offload else "–"]
    cells.append(f"{time_bound(graph) / plain.time:.4f}")
    for order in ("any", "file"):
        start = perf_counter()
        bound = offload_bound(
            graph, machine, budget.bytes_of(plain.peak, graph.resident_bytes), seconds, order=order
        ).seconds
        cells += [
            "none" if bound == inf else f"{bound / plain.time:.4f}",
            f"{perf_counter() - start:.1f}",
        ]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--budgets", default="75%,50%")
    parser.add_argument("--fractions", action="store_true")
    parser.add_argument("--links", type=float, nargs="?", const=0.0)
    options = parser.parse_args()
    heads = "graph, operations, budget, file's order %, any order %, schedule %, moments, s, s any order"
    if options.fractions:
        heads = "graph, operations, budget, file's order %, s, any order %, s"
    if options.links is not None:
        heads = "graph, operations, budget, GB/s, all operations, any order, s, file's order, s"
    print(f"| {heads.replace(', ', ' | ')} |")
    print("|---" * len(heads.split(", ")) + "|")
    for path in options.files:
        for budget in map(parse_budget, options.budgets.split(",")):
            graph = load_graph(path)
            if options.links is not None:
                line = linked(graph, budget, options.links, options.seconds)
            elif options.fractions:
                line = fractions(graph, budget)
            else:
                line = row(graph, budget, options.seconds)
            print(line, flush=True)


if __name__ == "__main__":
    main()
