"""How small arenas are: addresses for the schedules of real models, and what is proven below them.

Protocol. FOLDER holds graphs (benchmarks/model_graphs.py makes some). Each is solved by `auto` for 60 and
40 % of its plain peak, 15 s each, on a machine with links, unless FOLDER/schedules has the schedule. Printed:
copies; over the peak of live bytes: first fit, the arena that a search finds, and the one that it finds in
the least room that costs at most a thousandth of the time; the seconds of the search; and, with OR-tools
(memplan[moccasin]), a ratio that no arena of this schedule is below: some copies that can't be placed within
it, by a constraint program with 10 s for each capacity.

With --solve instead: the same schedules where the budget holds the whole arena; how often `auto` was asked
again, 15 s each; the arena over the budget, and what that costs, the period over that of the schedule above.

    python benchmarks/addresses.py FOLDER [--machine rtx3060] [--target 1.02 | --solve]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import perf_counter

import numpy as np
from memplan.graphs.files.files import load_graph
from memplan.planner.addresses.addresses import lay_out, rows_of
from memplan.planner.addresses.first_fit import first_fit
from memplan.planner.addresses.layout import Layout
from memplan.planner.addresses.lifetimes import Lifetimes
from memplan.planner.addresses.search import eject
from memplan.planner.schedule.file import load_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import Options, Problem, SolverResult, Status
from memplan.solvers.registry.arena import ArenaError, in_arena, without_loss
from memplan.solvers.registry.catalogue import entry, module_of

PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]
PERCENT = (60, 40)


def schedules(folder: Path, machine: str) -> Iterator[tuple[str, Path, Path]]:
    (folder / "schedules").mkdir(exist_ok=True)
    for graph in sorted(folder.glob("*.json.gz")):
        for percent in PERCENT:
            name = f"{graph.name.removesuffix('.json.gz')}-{percent}"
            path = folder / "schedules" / f"{name}.json"
            if not path.exists():
                call = ["solve", graph, "--budget", f"{percent}%", "--time-limit", "15", "--bound-time", "0"]
                subprocess.run([*PLAN, *map(str, call), "--machine", machine, "-q", "-o", str(path)])
            if path.exists():
                yield name, graph, path


def solved_again(folder: Path, machine: str) -> None:
    solver = module_of(entry("auto"))
    print(f"{'schedule':14} {'solved':>6} {'arena / budget':>14} {'period':>7}")
    for name, graph_path, path in schedules(folder, machine):
        graph, solves = load_graph(graph_path), count()
        file = load_schedule(path, graph)
        assert file.budget is not None
        problem = Problem(graph, file.budget, file.machine)

        def recomputed(less: Problem, solves: Iterator[int] = solves) -> SolverResult:
            next(solves)
            return solver.solve(less, Options(15.0, solver.Settings()))

        answer = SolverResult(file.schedule, Status.HEURISTIC)
        try:
            best, asked, layout = in_arena("auto", problem, answer, recomputed, lambda _line: None)
        except ArenaError as error:
            print(f"{name:14} {error}", flush=True)
            continue
        before, after = (
            simulate(graph, one.schedule, budget=room, machine=file.machine).figures.time
            for one, room in ((answer, file.budget), (best, asked.budget))
        )
        ratio = f"{layout.size / file.budget:14.3f} {after / before:7.3f}"
        print(f"{name:14} {next(solves):6} {ratio}", flush=True)


def hard_core(rows: Lifetimes, capacity: int) -> Lifetimes:
    """Copies that a search for this capacity ejects again and again."""
    weight = rows.size * np.sqrt(rows.end - rows.start)
    weight /= weight.mean()
    before = weight.copy()
    offsets, left = np.zeros(len(rows.size), np.int64), np.zeros(1, np.int64)
    eject(rows.size, rows.start, rows.end, rows.steps, capacity, 30_000, 1, True, weight, offsets, left)
    return rows.of(weight - before >= 1)


def has_none(rows: Lifetimes, capacity: int, seconds: float = 10.0) -> bool:
    """Whether no layout of these is within the capacity; False where that is not proven in the time."""
    from ortools.sat.python import cp_model

    if not len(rows.size):
        return False
    unit = int(np.gcd.reduce(rows.size))
    model, room = cp_model.CpModel(), capacity // unit
    if (rows.size // unit > room).any():
        return True
    across, along = [], []
    for size, start, end in zip(rows.size // unit, rows.start, rows.end, strict=True):
        offset = model.new_int_var(0, room - int(size), "")
        place = model.new_fixed_size_interval_var(offset, int(size), "")
        pieces = [(start, min(end, rows.steps)), (0, end - rows.steps)]
        for first, last in ((int(a), int(b)) for a, b in pieces if b > a):
            along.append(model.new_fixed_size_interval_var(first, last - first, ""))
            across.append(place)
    model.add_no_overlap_2d(along, across)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = seconds, 1
    return solver.solve(model) == cp_model.INFEASIBLE


def proven(rows: Lifetimes, size: int) -> int:
    """Bytes that no arena is below: by bisection between the bound and what was found, to 0.5 %.

    What is always there may lie at the bottom: its bytes are taken off.
    """
    always = rows.end - rows.start == rows.steps
    min_memory, moving = int(rows.size[always].sum()), rows.of(~always)
    low = high = int(rows.live().max())
    high = size
    while high - low > 0.005 * low:
        middle = (low + high) // 2 - min_memory
        if has_none(hard_core(moving, middle), middle):
            low = middle + min_memory
        else:
            high = middle + min_memory
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--machine", default="rtx3060")
    parser.add_argument("--target", type=float, default=1.0, help="an arena as small is small enough")
    parser.add_argument("--solve", action="store_true", help="what it costs that the arena is the budget")
    chosen = parser.parse_args()
    if chosen.solve:
        solved_again(chosen.folder, chosen.machine)
        return
    lay_out(Lifetimes(*np.array([[0, 1, 2], [3, 1, 2], [0, 1, 2], [3, 4, 3]]), steps=5))  # compiles
    columns = f"{'first fit':>9} {'arena':>7} {'waiting':>7} {'seconds':>7} {'none below':>10}"
    print(f"{'schedule':14} {'copies':>6} {columns}")
    reached = total = 0
    for name, graph_path, path in schedules(chosen.folder, chosen.machine):
        graph = load_graph(graph_path)
        file = load_schedule(path, graph)
        rows = rows_of(graph, file.schedule, budget=file.budget, machine=file.machine)
        bound = int(rows.live().max())
        start = perf_counter()
        layout = lay_out(rows, int(chosen.target * bound))
        seconds = perf_counter() - start
        assert layout.overlap() is None
        first = Layout(rows, first_fit(rows)).size / bound
        problem = Problem(graph, file.budget or bound, file.machine)
        answer = SolverResult(file.schedule, Status.HEURISTIC)
        figures = simulate(graph, file.schedule, budget=file.budget, machine=file.machine).figures
        waiting = without_loss(problem, answer, figures, int(chosen.target * bound)).layout.size / bound
        try:
            none = f"{proven(rows, layout.size) / bound:10.3f}" if layout.size > 1.02 * bound else ""
        except ImportError:
            none = "?"
        ratio = layout.size / bound
        figures_of = f"{first:9.3f} {ratio:7.3f} {waiting:7.3f} {seconds:7.2f} {none}"
        print(f"{name:14} {len(rows.size):6} {figures_of}", flush=True)
        reached += min(ratio, waiting) <= 1.02
        total += 1
    print(f"{reached} of {total} at most 1.02")


if __name__ == "__main__":
    main()
