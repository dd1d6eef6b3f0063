"""How high the lower bounds are, how long they take, and how near a schedule comes to them.

Protocol: for each graph and budget (percent of the plain peak) `residency_schedule` for the file's order, and
`free_order_bound` from its moments, each with `--seconds`. Reported: time above the plain schedule's that
every schedule must take (file's order, any order), that of the schedule met on the way, the moments looked
at, and wall-clock seconds. "none": no schedule exists.
`--fractions`: the bounds in fractions alone, by minimum cuts, the median seconds of three.
Usage: python benchmarks/bounds_speed.py [--seconds 10] [--budgets 75,50] [--fractions] FILE…
"""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter

from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph
from memplan.planner.plain import baseline
from memplan.solvers.bounds.residency.residency import free_order_bound
from memplan.solvers.bounds.residency.schedule import residency_schedule
from memplan.solvers.bounds.residency.search import Search


def row(graph: Graph, percent: int, seconds: float) -> str:
    plain = baseline(graph)
    budget = plain.peak * percent // 100

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
        percent,
        above(fixed.bound.seconds),
        above(free.bound.seconds),
    ]
    cells += [met, len(fixed.moments), f"{middle - start:.1f}", f"{end - middle:.1f}"]
    return f"| {' | '.join(map(str, cells))} |"


def fractions(graph: Graph, percent: int) -> str:
    plain = baseline(graph)
    cells = [graph.name, len(graph.operations), percent]
    for order in ("file", "any"):
        seconds: list[float] = []
        for _ in range(3):
            start = perf_counter()
            search = Search(graph, plain.peak * percent // 100, order, inf)
            search.run(whole=False)
            seconds.append(perf_counter() - start)
        extra = search.best.extra
        cells += ["none" if extra == inf else f"{100 * extra / plain.time:.3f}", f"{median(seconds):.2f}"]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--budgets", default="75,50")
    parser.add_argument("--fractions", action="store_true")
    options = parser.parse_args()
    heads = "graph, operations, budget %, file's order %, any order %, schedule %, moments, s, s any order"
    if options.fractions:
        heads = "graph, operations, budget %, file's order %, s, any order %, s"
    print(f"| {heads.replace(', ', ' | ')} |")
    print("|---" * len(heads.split(", ")) + "|")
    for path in options.files:
        for percent in map(int, options.budgets.split(",")):
            graph = load_graph(path)
            line = fractions(graph, percent) if options.fractions else row(graph, percent, options.seconds)
            print(line, flush=True)


if __name__ == "__main__":
    main()
