"""Weight offloading: the paper's table 1, the same instances with slower links, 3-partition, long chains.

Protocol. `table`, `sweep`: the graphs of a folder (one a row; default those of `instances/public`),
at the machine in each file; in the sweep with links of 500, 1000 and 2000 MiB/s, for the five rows of the
paper's figure 4. For each solver: the simulated period over the bound, device and host peak in GiB, the
seconds it took (solver alone; compiled code is loaded before). bound: the largest of the time of all
operations, the paper's program (eqs. 2 to 8) and the least time of the busier link, each within
BOUND_SECONDS; printed over the first. greedy: offload-greedy with no moves. `partition`: m, how many of the
seeds 0, 1, … end without idle time, worst and mean seconds; then how many of two unsolvable ones claim
that. `speed`: chains of 128 and 1,000 layers, the greedy alone, where 60 % of the weights must leave: its
seconds, and those of one simulation of its answer. All times of schedules are simulated.
Usage: python benchmarks/weight_offload.py {table,sweep,partition,speed} [seconds] [folder or seeds]
"""

from __future__ import annotations

import sys
from dataclasses import replace
from math import isfinite
from pathlib import Path
from time import perf_counter

from memplan.graphs.files.files import load_graph
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import with_updates
from memplan.instances.three_partition import solvable, unsolvable
from memplan.planner.plain import baseline
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.offload.offload_bound import weight_offload_bound
from memplan.solvers.offloading.cycles.cycle import cycle_of
from memplan.solvers.offloading.weight_offload.least import link_bound
from memplan.solvers.problem import Problem, Solution
from memplan.solvers.registry import run as registry

BOUND_SECONDS = 20.0
FIGURE_4 = ("gpt2-d38-b32", "gpt2-d74-b64", "bert-d96-b32", "gpt2-d74-b32", "bert-d144-b64")
COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20)
GIB = 2**30
PUBLIC = Path(__file__).parents[1] / "instances" / "public" / "weight-offload"


def with_links(graph: Graph, mib_per_second: float) -> Problem:
    assert graph.machine
    assert graph.machine.device_capacity
    rate = mib_per_second * 2**20
    machine = replace(graph.machine, links=Links(d2h=rate, h2d=rate))
    return Problem(graph, graph.machine.device_capacity, machine)


def bound_of(problem: Problem) -> float:
    assert problem.machine
    program = weight_offload_bound(problem.graph, problem.machine, problem.budget, BOUND_SECONDS)
    link = link_bound(cycle_of("bound", problem), BOUND_SECONDS)
    return max(bound for bound in (program.seconds, link) if isfinite(bound))


def cell(found: Solution, bound: float) -> str:
    figures = found.figures
    return (
        f"{figures.time / bound:.4f} | {figures.peak / GIB:.2f} | {figures.host_peak / GIB:.2f} "
        f"| {found.seconds:.2f}"
    )


def row(name: str, problem: Problem, seconds: float) -> str:
    least = float(problem.graph.operations.time.sum())
    bound = bound_of(problem)
    found = [
        registry.solve("offload-greedy", problem, settings={"moves": "0"}, bound_seconds=0),
        registry.solve("offload-greedy", problem, seconds, bound_seconds=0),
        *(registry.solve(solver, problem, bound_seconds=0) for solver in ("greedy-star", "l2l")),
    ]
    return f"| {name} | {bound / least:.4f} | " + " | ".join(cell(one, bound) for one in found) + " |"


def rows(folder: Path, names: list[str], rates: tuple[float, ...], seconds: float) -> None:
    print("| row | bound | greedy |||| offload-greedy |||| greedy-star |||| l2l ||||")
    print("|---" * 18 + "|")
    for rate in rates:
        for name in names:
            problem = with_links(load_graph(folder / f"{name}.graph.json.gz"), rate)
            print(row(f"{name}, {rate:g} MiB/s", problem, seconds), flush=True)


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
        graph = with_updates(chain(layers, seed=1), optimizer="sgd", when="in-backward", device_rate=1e12)
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
    what = sys.argv[1] if len(sys.argv) > 1 else "table"
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    last = sys.argv[3] if len(sys.argv) > 3 else ""
    load = solvable(2, 0)
    registry.solve("offload-greedy", Problem(load.graph(), load.budget), 1.0)
    if what == "partition":
        partition(seconds, int(last or 10))
    elif what == "speed":
        speed()
    else:
        folder = Path(last) if last else PUBLIC
        names = sorted(path.name.removesuffix(".graph.json.gz") for path in folder.glob("*.graph.json.gz"))
        rates = (12000.0,) if what == "table" else (500.0, 1000.0, 2000.0)
        rows(folder, names if what == "table" else [*FIGURE_4], rates, seconds)


if __name__ == "__main__":
    main()
