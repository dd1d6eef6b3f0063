"""How high the lower bounds are, how long they take, and how near a schedule comes to them.

Protocol: for each graph and budget (percent of the plain peak) `residency_schedule` for the file's order, and
`free_order_bound` from its moments, each with `--seconds`. Reported: time above the plain schedule's that
every schedule must take (file's order, any order), that of the schedule met on the way, the moments looked
at, and wall-clock seconds. "none": no schedule exists.
Usage: python benchmarks/bounds_speed.py [--seconds 10] [--budgets 75,50] FILE…
"""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path
from time import perf_counter

from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph
from memplan.planner.plain import baseline
from memplan.solvers.bounds.residency.residency import free_order_bound
from memplan.solvers.bounds.residency.schedule import residency_schedule


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--budgets", default="75,50")
    options = parser.parse_args()
    heads = "graph, operations, budget %, file's order %, any order %, schedule %, moments, s, s any order"
    print(f"| {heads.replace(', ', ' | ')} |")
    print("|---" * 9 + "|")
    for path in options.files:
        for percent in options.budgets.split(","):
            print(row(load_graph(path), int(percent), options.seconds), flush=True)


if __name__ == "__main__":
    main()
