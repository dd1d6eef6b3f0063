"""How large a graph checkmate solves to optimality, and how close it comes where it does not.

Protocol: one run for each graph and budget (percent of the plain peak), `seconds` as the limit, HiGHS
with its default of one thread. Reported: the program's size, wall-clock seconds, the time above the plain
schedule's, and how far above it every schedule in the file's order must be (checkmate's own bound).
Usage: python benchmarks/checkmate_speed.py [--seconds 60]
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from time import perf_counter

from memplan.graphs.files.files import load_graph
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, Options, Problem
from memplan.solvers.recomputation.checkmate import checkmate
from memplan.solvers.recomputation.checkmate.model import staged_program

CASES = [
    (chain(20), 60),
    (chain(20), 45),
    (chain(30), 60),
    (chain(50), 60),
    (chain(20, uniform=True, parameters=False), 45),
    (unet(6), 70),
    (unet(10), 70),
    (layered(40), 80),
    (layered(60), 80),
    (layered(100), 90),
]
PUBLIC = [("fcn8", 70), ("unet", 50), ("unet", 42), ("segnet", 50)]
FOLDER = Path(__file__).parents[1] / "instances" / "public"
NUMBER = re.compile(r"faster than ([\d.e+-]+) s")


def row(graph: Graph, percent: int, seconds: float) -> str:
    plain = baseline(graph)
    budget = plain.peak * percent // 100
    size = staged_program(graph, budget - int(graph.tensors.bytes[graph.resident].sum())).program.size
    lines: list[str] = []
    start = perf_counter()
    try:
        answer = checkmate.solve(Problem(graph, budget), Options(seconds, report=lines.append))
    except InfeasibleError as refusal:
        verdict = f"{type(refusal).__name__} | – | –"
    else:
        time = simulate(graph, answer.schedule, budget=budget).figures.time
        found = NUMBER.search(lines[-1])
        bound = f"{float(found[1]) / plain.time - 1:.2%}" if found else "–"
        verdict = f"{answer.status} | {time / plain.time - 1:.2%} | {bound}"
    took = perf_counter() - start
    return f"| {graph.name} | {len(graph.operations)} | {percent} % | {size} | {took:.1f} | {verdict} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    print("| graph | operations | budget | program | seconds | status | above plain | bound |")
    print("|---|---|---|---|---|---|---|---|")
    public = [(load_graph(FOLDER / f"{name}.json"), percent) for name, percent in PUBLIC]
    for graph, percent in CASES + public:
        print(row(graph, percent, options.seconds), flush=True)


if __name__ == "__main__":
    main()
