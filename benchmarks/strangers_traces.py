"""Strangers' kernel traces: how near solvers come to the bound, beside a greedy planner of migration.

Protocol. Each trace of kernel_traces/kept.py, and others of its family by seed, at each budget in
percent of the plain peak. Times are over that of all kernels: the offloading bound, with so many seconds, for
the file's order, or for any where the file says which kernels are updates: solvers move these; the greedy
planner (greedy_migration.py); each solver with the same time limit, in this process, all judged by the
simulator.
The links could hide all where the bound is the time of all kernels, to a thousandth: no stretch of the turn
is known to ask more of a link than it moves meanwhile. There a solver should be within 5 % of the bound,
elsewhere within half of the greedy planner's gap to it; what is not is marked.

    python benchmarks/strangers_traces.py [NAME …] [--seeds 1] [--budgets 90,50,35] [--seconds 30]
        [--bound-seconds 15] [--solvers joint,auto]
    python benchmarks/strangers_traces.py --write        the kept traces' files, anew
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from math import inf
from pathlib import Path

from greedy_migration import greedy
from memplan.graphs.files.files import save_graph
from memplan.graphs.graph import Phase
from memplan.graphs.machine import Machine
from memplan.planner.baseline import baseline
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry.run import solve

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from kernel_traces.kept import KEPT
from kernel_traces.traces import Trace, kernel_trace

FOLDER = Path(__file__).parents[1] / "instances" / "public" / "traces"
HIDDEN, ENOUGH = 1e-3, 0.05


def seconds_of(solver: str, problem: Problem, time_limit: float) -> float:
    """Of its schedule; ∞ where it finds none."""
    try:
        return solve(solver, problem, time_limit, bound_seconds=0.0).figures.time
    except InfeasibleError:
        return inf


def row(name: str, trace: Trace, percent: float, options: argparse.Namespace) -> str:
    graph = kernel_trace(trace)
    machine, plain = graph.machine or Machine(), baseline(graph)
    problem = Problem(graph, int(plain.peak * percent / 100), machine)
    order = "any" if (graph.operations.phase == Phase.UPDATE).any() else "file"
    bound = offload_bound(graph, machine, problem.budget, options.bound_seconds, order=order).seconds
    planned = greedy(graph, machine, problem.budget)
    yardstick = planned[1].time if planned else inf
    hidden = bound <= plain.time * (1 + HIDDEN)
    wanted = bound * (1 + ENOUGH) if hidden else (bound + yardstick) / 2
    found = [seconds_of(solver, problem, options.seconds) for solver in options.solvers.split(",")]
    cells = [name, str(trace.seed), f"{percent:g} %", "yes" if hidden else "no", f"{bound / plain.time:.4f}"]
    cells.append(words(yardstick, plain.time))
    for time in found:
        missed = "" if time <= wanted * (1 + HIDDEN) and time < inf else " missed"
        gap = f" ({100 * (time / bound - 1):.1f} %)" if time < inf else ""
        cells.append(words(time, plain.time) + gap + missed)
    return f"| {' | '.join(cells)} |"


def words(time: float, unit: float) -> str:
    return f"{time / unit:.4f}" if time < inf else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(KEPT))
    parser.add_argument("--seeds", type=int, default=1, help="traces of each family, the kept one first")
    parser.add_argument("--budgets", default="90,50,35")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--bound-seconds", type=float, default=15.0)
    parser.add_argument("--solvers", default="joint,auto")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        for name, trace in KEPT.items():
            save_graph(kernel_trace(trace), FOLDER / f"{name}.json.gz")
        return
    solvers = options.solvers.split(",")
    heads = ["trace", "seed", "budget", "links could hide all", "bound", "greedy", *solvers]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for name in options.names or KEPT:
        for seed in range(options.seeds):
            trace = replace(KEPT[name], seed=KEPT[name].seed + 100 * seed)
            for percent in options.budgets.split(","):
                print(row(name, trace, float(percent), options), flush=True)


if __name__ == "__main__":
    main()
