"""Solvers that move data, side by side: simulated time over the offloading bound, peaks, seconds.

Protocol. Each graph at each link rate (both directions; 0: the machine of the file) and its device's capacity
or the budget given, by each solver, one after the other in one process. The bound is that of schedules in the
file's order (offload/offload_bound.py). A line of the CSV for each; at the end a table: graphs and rates ×
solvers. The same command goes on with what the CSV lacks. All times of schedules are simulated.

    python benchmarks/offload_tables.py GRAPHS… [--rates 0,0.5e9,1e9] [--solvers A,B] [--budget 12GB]
                                        [--seconds S] [--bound-seconds S] [-o rows.csv]
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from memplan.graphs.errors import MemplanError
from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import time_bound
from memplan.planner.budget import device_budget, parse_budget
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry

COLUMNS = [
    "graph", "rate", "budget", "solver", "outcome", "time", "bound", "ratio", "of_computations",
    "device_peak", "host_peak", "seconds", "message",
]  # fmt: skip
Row = dict[str, str]


def main() -> None:
    arguments = _arguments()
    solvers = arguments.solvers.split(",")
    rows = _known(arguments.output)
    for path in arguments.graphs:
        graph = load_graph(path)
        for rate in (float(text) for text in arguments.rates.split(",")):
            machine = _machine(graph, rate)
            budget = _budget(graph, machine, arguments.budget)
            done = {row["solver"] for row in rows if _key(row) == (graph.name, f"{rate:g}", str(budget))}
            missing = [solver for solver in solvers if solver not in done]
            if not missing:
                continue
            bound = offload_bound(graph, machine, budget, arguments.bound_seconds).seconds
            for solver in missing:
                row = _row(solver, Problem(graph, budget, machine), bound, arguments.seconds)
                rows.append({"graph": graph.name, "rate": f"{rate:g}", **row})
                _append(arguments.output, rows[-1])
                print(*(rows[-1].get(name, "") for name in COLUMNS[:8]), flush=True)
    print(*_table(rows, solvers), sep="\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    moving = [entry.name for entry in registry.entries() if entry.needs_links]
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--rates", default="0", help="bytes/s, several by commas")
    parser.add_argument("--solvers", default=",".join([*moving, "auto"]))
    parser.add_argument("--budget", help="bytes, or a share of the plain peak: 60%%")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--bound-seconds", type=float, default=30.0)
    parser.add_argument("-o", dest="output", type=Path)
    return parser.parse_args()


def _machine(graph: Graph, rate: float) -> Machine:
    machine = graph.machine or Machine()
    return replace(machine, links=replace(machine.links, d2h=rate, h2d=rate)) if rate else machine


def _budget(graph: Graph, machine: Machine, text: str | None) -> int:
    wanted = parse_budget(text) if text else device_budget(machine)
    if wanted is None:
        raise SystemExit(f"{graph.name} names no device capacity: give a --budget")
    return wanted.bytes_of(baseline(graph).peak, graph.resident_bytes)


def _row(solver: str, problem: Problem, bound: float, seconds: float) -> Row:
    row = {"budget": str(problem.budget), "solver": solver, "bound": f"{bound:.9g}"}
    start = monotonic()
    try:
        found = registry.solve(solver, problem, seconds, bound_seconds=0.0)
    except MemplanError as error:
        spent = f"{monotonic() - start:.2f}"
        return {**row, "outcome": type(error).__name__, "seconds": spent, "message": str(error)}
    figures = found.figures
    return {
        **row,
        "outcome": found.status.value,
        "time": f"{figures.time:.9g}",
        "ratio": f"{figures.time / bound:.4f}",
        "of_computations": f"{figures.time / time_bound(problem.graph):.4f}",
        "device_peak": str(figures.peak),
        "host_peak": str(figures.host_peak),
        "seconds": f"{found.seconds:.2f}",
    }


def _key(row: Row) -> tuple[str, str, str]:
    return row["graph"], row["rate"], row["budget"]


def _known(path: Path | None) -> list[Row]:
    if path is None or not path.exists():
        return []
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def _append(path: Path | None, row: Row) -> None:
    if path is None:
        return
    new = not path.exists()
    with path.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def _table(rows: Sequence[Row], solvers: Sequence[str]) -> list[str]:
    """time / bound, and the seconds that it took."""
    places = list(dict.fromkeys(_key(row) for row in rows))
    cells = {(_key(row), row["solver"]): row for row in rows}
    lines = ["| graph | GB/s | budget, GB | bound, s | " + " | ".join(solvers) + " |"]
    lines.append("|---" * (4 + len(solvers)) + "|")
    for place in places:
        here = [cells.get((place, solver)) for solver in solvers]
        bound = next(float(row["bound"]) for row in here if row)
        graph, rate, budget = place
        rate = f"{float(rate) / 1e9:g}" if float(rate) else "own"
        texts = [f"{row['ratio']} ({row['seconds']} s)" if row and row.get("ratio") else "–" for row in here]
        lines.append(f"| {graph} | {rate} | {int(budget) / 1e9:.2f} | {bound:.6g} | {' | '.join(texts)} |")
    return lines


if __name__ == "__main__":
    main()
