"""How near `search` comes to the bounds close to the least memory, by families of graphs made by seed.

Protocol. Each graph is solved by `search` alone at each budget with a fixed number of moves for each
operation and several seeds of its random numbers, so rows do not depend on how busy the machine is (but for
the processor seconds). Budgets of the families lie at fixed shares of the way from the floor on memory to the
plain peak; those of graph files are given as percent of the plain peak. Reported: time above the plain
schedule's in percent; where nothing fits, by how many percent of the budget the least peak exceeds it;
seconds of processor time; the residency bound of any order and of the file's, likewise in percent.

    python benchmarks/near_floor.py [FILE:PERCENT,… …] [--families chain,unet,layered,training,transformer]
        [--graphs 3] [--seeds 1] [--moves 300] [--bound-seconds 0] [-o rows.csv] [--against rows.csv]

The last lines compare with rows of another version of the code: solved here and there, and the geometric
mean of the ratio of times where both solved it, of least peaks where neither did.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from math import exp, inf, log
from pathlib import Path
from random import Random
from statistics import fmean
from time import thread_time

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from memplan.graphs.files.files import load_graph
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.residency.residency import free_order_bound, residency_bound
from memplan.solvers.problem import InfeasibleError, Options, Problem
from memplan.solvers.recomputation.search import search
from training_graphs import training
from transformer_layers import transformer

LOW, HIGH = (0.04, 0.1, 0.2), (0.2, 0.35, 0.5)
FAMILIES = {
    "chain": (LOW, lambda seed: chain(40, seed=seed)),
    "unet": (LOW, lambda seed: unet(9, seed=seed)),
    "layered": (HIGH, lambda seed: layered(120, seed=seed)),
    "training": (HIGH, lambda seed: training(12, seed, skip=0.3)),
    "transformer": (
        LOW,
        lambda seed: transformer(5 + seed, masked=bool(seed % 2), noise=Random(seed).random()),
    ),
}
"""Shares, and a graph by seed."""

COLUMNS: tuple[str, ...] = ("family", "graph", "budget", "seed", "over", "excess", "seconds", "any", "file")
Row = dict[str, str]


def problems(files: list[str], families: list[str], graphs: int) -> Iterator[tuple[str, Graph, int, str]]:
    """Family, graph, budget in bytes, and the budget in words."""
    for each in files:
        path, _, percents = each.rpartition(":")
        graph = load_graph(Path(path))
        for percent in percents.split(","):
            yield Path(path).stem, graph, int(baseline(graph).peak * float(percent) / 100), f"{percent}%"
    for family in families:
        shares, make = FAMILIES[family]
        for seed in range(graphs):
            graph = make(seed)
            low, high = minimum_memory(graph), baseline(graph).peak
            for share in shares:
                yield family, graph, int(low + share * (high - low)), f"{share:g}"


def solved(problem: Problem, moves: int, seed: int) -> Row:
    """The time above the plain one, or the excess of the least peak, in percent; processor seconds."""
    begin = thread_time()
    try:
        answer = search.solve(problem, Options(settings=search.Settings(moves, seed)))
    except InfeasibleError as refusal:
        over, excess = "", f"{100 * ((refusal.least or inf) / problem.budget - 1):.2f}"
    else:
        time = simulate(problem.graph, answer.schedule, budget=problem.budget).figures.time
        over, excess = f"{100 * (time / baseline(problem.graph).time - 1):.3f}", ""
    return {"over": over, "excess": excess, "seconds": f"{thread_time() - begin:.2f}", "seed": str(seed)}


def bounds(problem: Problem, seconds: float) -> Row:
    if not seconds:
        return {"any": "", "file": ""}
    plain = baseline(problem.graph).time
    free, fixed = (
        method(problem.graph, problem.budget, seconds).bound.seconds
        for method in (free_order_bound, residency_bound)
    )
    return {"any": f"{100 * (free / plain - 1):.2f}", "file": f"{100 * (fixed / plain - 1):.2f}"}


def compare(here: list[Row], there: list[Row]) -> None:
    """By families, problems that both sets of rows have."""
    other = {_key(row): row for row in there}
    pairs = [(row, other[_key(row)]) for row in here if _key(row) in other]
    heads = "family, problems, solved, there, time ratio, better, worse, peak ratio, seconds ratio"
    print(f"\n| {heads.replace(', ', ' | ')} |\n{'|---' * 9}|")
    for family in [*dict.fromkeys(row["family"] for row, _ in pairs), "all"]:
        chosen = [pair for pair in pairs if family in ("all", pair[0]["family"])]
        times, peaks = (_ratios(chosen, name) for name in ("over", "excess"))
        better, worse = sum(ratio < 0.9999 for ratio in times), sum(ratio > 1.0001 for ratio in times)
        solved_here, solved_there = (sum(bool(pair[k]["over"]) for pair in chosen) for k in (0, 1))
        seconds = [sum(float(pair[k]["seconds"]) for pair in chosen) for k in (0, 1)]
        cells = [family, len(chosen), solved_here, solved_there, _mean(times), better, worse, _mean(peaks)]
        print(f"| {' | '.join(map(str, [*cells, f'{seconds[0] / seconds[1]:.2f}']))} |")


def _ratios(pairs: list[tuple[Row, Row]], name: str) -> list[float]:
    """Of what both have, 100 % added."""
    both = [(float(mine[name]), float(its[name])) for mine, its in pairs if mine[name] and its[name]]
    return [(100 + mine) / (100 + its) for mine, its in both]


def _mean(ratios: list[float]) -> str:
    return f"{exp(fmean(map(log, ratios))):.4f}" if ratios else "–"


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in ("family", "graph", "budget", "seed"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE:PERCENT,…")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--graphs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--moves", type=int, default=300)
    parser.add_argument("--bound-seconds", type=float, default=0.0)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    families = [name for name in options.families.split(",") if name]
    rows = list[Row]()
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for family, graph, budget, words in problems(options.files, families, options.graphs):
        problem = Problem(graph, budget)
        shared = {
            "family": family,
            "graph": graph.name,
            "budget": words,
            **bounds(problem, options.bound_seconds),
        }
        for seed in range(options.seeds):
            rows.append({**shared, **solved(problem, options.moves, seed)})
            print(f"| {' | '.join(rows[-1][name] for name in COLUMNS)} |", flush=True)
    if options.output:
        with options.output.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    if options.against:
        with options.against.open(newline="") as file:
            compare(rows, list(csv.DictReader(file)))


if __name__ == "__main__":
    main()
