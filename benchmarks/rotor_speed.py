"""Rotor: how fast its table fills, and what the search above the budget wins back of the rounding.

Protocol. Speed: the table alone, once, for random chains (seed 0) of L blocks with M slots; beside it the
largest resident set of the process so far. Quality: `chain(n, seed)` for n = 30, 60, 100, 8 seeds, at 50, 60,
… 90 % of the plain peak, 500 slots. Mean overheads against the plain schedule of the program's answer (the
table at the budget, sizes rounded up), of rotor's answer (the fastest sequence of the table whose
simulated peak fits) and of the bound (sizes rounded down); how often rotor's answer beats the program's.
Usage: python benchmarks/rotor_speed.py
"""

from __future__ import annotations

import resource
from math import isfinite
from statistics import fmean
from time import perf_counter

from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.solvers.chains.costs import chain_costs
from memplan.solvers.chains.options import single_options
from memplan.solvers.chains.problem import chain_problem
from memplan.solvers.chains.table import ChainTable
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry

SLOTS = 500


def speed() -> None:
    print("| blocks | slots | table, seconds | memory |\n|---|---|---|---|")
    for blocks, slots in ((50, 500), (100, 500), (200, 500), (200, 1000), (300, 500)):
        graph = chain(blocks - 1)
        peak = baseline(graph).peak
        chained = chain_problem("rotor", Problem(graph, peak), blocks)
        costs = chain_costs(graph, chained.chain, chained.runs)
        slot_bytes = (peak - costs.resident_bytes) // slots
        start = perf_counter()
        ChainTable(single_options(costs), slots, slot_bytes)
        seconds = perf_counter() - start
        gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"| {blocks} | {slots} | {seconds:.2f} | {gigabytes:.2f} GB |", flush=True)


def overheads(graph: Graph, part: float) -> tuple[float, ...] | None:
    """Of the program's answer, rotor's and the bound; None where one is missing."""
    plain = baseline(graph)
    problem = Problem(graph, int(part * plain.peak))
    chained = chain_problem("rotor", problem, 200)
    costs = chain_costs(graph, chained.chain, chained.runs)
    free = problem.budget - costs.resident_bytes
    slot_bytes = max(1, -(-free // SLOTS))
    whole, spare = divmod(max(0, free), slot_bytes)
    single = single_options(costs)
    up, down = (
        float(ChainTable(single, whole, slot_bytes, spare, optimistic=optimistic).times()[whole])
        for optimistic in (False, True)
    )
    if not isfinite(up):
        return None
    found = registry.solve("rotor", problem, settings={"slots": str(SLOTS)}).figures.time
    seconds = (up + costs.fixed_seconds, found, down + costs.fixed_seconds)
    return tuple(one / plain.time - 1 for one in seconds)


def quality() -> None:
    print("| blocks | problems | search wins | program | rotor | bound |\n|---|---|---|---|---|---|")
    for blocks in (30, 60, 100):
        rows = [
            row
            for seed in range(8)
            for part in (0.5, 0.6, 0.7, 0.8, 0.9)
            if (row := overheads(chain(blocks, seed=seed), part)) is not None
        ]
        wins = sum(found < program - 1e-12 for program, found, _bound in rows)
        program, found, bound = (f"{fmean(column):.2%}" for column in zip(*rows, strict=True))
        print(f"| {blocks} | {len(rows)} | {wins} | {program} | {found} | {bound} |", flush=True)


def main() -> None:
    speed()
    print()
    quality()


if __name__ == "__main__":
    main()
