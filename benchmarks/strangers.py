"""Run small models that nobody tuned memplan for (strangers_*.py) on the whole path: does it work on what
people have?

    nice python benchmarks/strangers.py --rows rows.jsonl [--write docs/strangers.md] [family | model ...]

Each model has a process of its own: plain PyTorch, profile, solve at 60 % of the plain peak (or half-way to
it from the least that any schedule needs, or nearer), run beside PyTorch. *works*: loss, gradients and
buffers of three iterations are bitwise equal and the measured peak is the predicted, or below it where what a
product takes depends on the data (mixtures of experts, planned for the worst routing of their tokens).
*refused*: one line of ours, `optimize` raises it. *fails*: anything else. Rows that are in the file already
are kept: a run that was stopped goes on.
"""

import argparse
import json
import multiprocessing
import os
import time
import traceback
from itertools import zip_longest
from pathlib import Path

SOLVER, SHARE = "search", 0.6
WORKS, REFUSED, FAILS, NO_MODEL = "works", "refused", "fails", "no model"


def strangers():
    """Per family, the functions that make the models, by name."""
    from strangers_diffusers import DIFFUSERS
    from strangers_graphs import GRAPHS
    from strangers_timm import TIMM
    from strangers_torch import TORCH
    from strangers_torchvision import TORCHVISION
    from strangers_transformers_mixed import MIXED
    from strangers_transformers_text import TEXT
    from strangers_transformers_vision import VISION

    return {
        "PyTorch": TORCH,
        "PyTorch Geometric": GRAPHS,
        "transformers": {**TEXT, **VISION, **MIXED},
        "diffusers": DIFFUSERS,
        "timm": TIMM,
        "torchvision": TORCHVISION,
    }


def built(make):
    """The iteration, after one of plain PyTorch: what that can't do is no model."""
    import torch
    from memplan.runtime.compare.eager import run_eager
    from memplan.runtime.model.python_state import state_put_back
    from memplan.runtime.model.unchanged import unchanged

    torch.manual_seed(0)
    iteration = make()
    with unchanged(iteration, torch.device("cpu")), state_put_back(iteration):
        run_eager(iteration)
    return iteration


def outcome(iteration, time_limit):
    from memplan.graphs.errors import MemplanError
    from memplan.planner.plain import baseline
    from memplan.planner.simulator.simulate import simulate
    from memplan.runtime.calls.grouped import is_grouped
    from memplan.runtime.compare.side_by_side import side_by_side
    from memplan.runtime.profile.profile import graph_from, measure_program
    from memplan.runtime.run.cycle import Terms
    from memplan.runtime.run.execute import PlannedStep
    from memplan.runtime.trace.settle import residents, settled
    from memplan.solvers.problem import InfeasibleError, Problem
    from memplan.solvers.registry.run import solve

    def solved(graph):
        plain = baseline(graph).peak
        budget, floor = int(SHARE * plain), 0
        for above in (0.5, 0.8, 1.0):
            try:
                problem = Problem(graph, budget)
                return solve(SOLVER, problem, time_limit, bound_seconds=0).schedule, budget, budget / plain
            except InfeasibleError as error:
                floor = max(floor, error.floor, error.least or 0)
                budget = floor + int(above * (plain - floor))
        return solve(SOLVER, Problem(graph, plain), time_limit, bound_seconds=0).schedule, plain, 1.0

    try:
        program = settled(iteration)
        graph = graph_from(program, measure_program(program, residents(program, iteration)))
        schedule, budget, share = solved(graph)
        predicted = simulate(graph, schedule).figures.peak
        found = side_by_side(iteration, PlannedStep(iteration, program, schedule, Terms(graph, budget)), 1)
    except MemplanError as error:
        return {"outcome": REFUSED, "why": str(error)}
    peaks = found.planned.peaks
    off = peaks.device - predicted
    off = 0 if 0 < off <= peaks.beside else off
    row = {"operations": len(graph.operations), "share": share, "off": off, "peak": predicted}
    row["used"] = [] if program.used is None else program.used.names
    if not found.comparison.equal:  # optimize compares too
        why = f"the traced iteration is not the model's: {found.comparison.difference}"
        return {"outcome": REFUSED if found.comparison.suspects else FAILS, "why": why, **row}
    by_data = any(is_grouped(each.call.target, each.call.arguments) for each in program.operations)
    if off > 0 or (off and not by_data):
        return {"outcome": FAILS, "why": f"measured peak {off:+,} bytes beside the predicted", **row}
    return {"outcome": WORKS, "how": str(found.comparison), **row}


def row_of(make, time_limit, pipe):
    """What a child sends: what it comes to, or the last line of a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        iteration = built(make)
    except Exception as error:
        pipe.send({"outcome": NO_MODEL, "why": " ".join(f"{type(error).__name__}: {error}".split())[:300]})
        return
    try:
        pipe.send(outcome(iteration, time_limit))
    except BaseException:
        lines = traceback.format_exc().strip().splitlines()
        pipe.send({"outcome": FAILS, "why": lines[-1][:300], "trace": lines[-12:]})


def run(make, options):
    """The row of a model, made in a process of its own, which shares what is imported here."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=row_of, args=(make, options.time_limit, there))
    start = time.perf_counter()
    child.start()
    there.close()
    try:
        row = here.recv() if here.poll(options.timeout) else {"outcome": FAILS, "why": "out of time"}
    except EOFError:
        row = {"outcome": FAILS, "why": "its process ended"}
    child.kill()
    child.join()
    return {**row, "seconds": round(time.perf_counter() - start, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="families or models, by default all")
    parser.add_argument("--rows", type=Path, help="a file of JSON lines, to add to")
    parser.add_argument("--write", type=Path, help="the page to write from all rows")
    parser.add_argument("--machine", default="unnamed machine", help="as the page names it")
    parser.add_argument("--state", default="unnamed state", help="of the code, as the page names it")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds to solve in")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for a model")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    import memplan.training.optimize  # noqa: F401
    from memplan.graphs.generators import unet
    from memplan.planner.plain import baseline
    from memplan.solvers.problem import Problem
    from memplan.solvers.registry.run import solve

    graph = unet(2)
    solve(
        SOLVER, Problem(graph, baseline(graph).peak), 0.1, bound_seconds=0
    )  # compiled once for all children

    rows = [json.loads(line) for line in read(options.rows)]
    done = {(row["family"], row["model"]) for row in rows}
    for family, name, make in in_turn(strangers()):
        if (family, name) in done or (options.only and not {family, name} & {*options.only}):
            continue
        row = {"family": family, "model": name, "state": options.state, **run(make, options)}
        rows.append(row)
        print(f"{row['outcome']:8} {family}: {name} ({row['seconds']} s) {row.get('why', '')}", flush=True)
        if options.rows:
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    if options.write:
        from strangers_page import page

        options.write.write_text(page(rows, options.machine))


def in_turn(families):
    """One of each family after the other: a run that is stopped has some of all."""
    for each in zip_longest(
        *([(family, *one) for one in models.items()] for family, models in families.items())
    ):
        yield from (one for one in each if one is not None)


def read(path):
    return path.read_text().splitlines() if path and path.exists() else []


if __name__ == "__main__":
    main()
