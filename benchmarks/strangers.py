"""Run small models that nobody tuned memplan for (strangers_*.py) on the whole path. Prints a table.

    python benchmarks/strangers.py [--time-limit S] [--timeout S] [model ...]

Each model has a process of its own: profile, solve at 60 % of the plain peak (or the first of 70, 80, 90
and 100 % where a schedule is found), run beside eager PyTorch. *works*: loss, gradients and buffers are
bitwise equal and the measured peak is the predicted. *refused*: one line of ours. *crash*: a fault of ours.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter

SHARES = (0.6, 0.7, 0.8, 0.9, 1.0)


def strangers():
    """The functions that make the models, by name."""
    from strangers_torch import TORCH
    from strangers_transformers import TRANSFORMERS

    return TORCH | TRANSFORMERS


def outcome(name, time_limit):
    import torch
    from memplan.graphs.errors import MemplanError
    from memplan.planner.plain import baseline
    from memplan.planner.simulator.simulate import simulate
    from memplan.runtime.compare.side_by_side import side_by_side
    from memplan.runtime.profile.profile import graph_from, measure_program
    from memplan.runtime.run.cycle import Terms
    from memplan.runtime.run.execute import PlannedStep
    from memplan.runtime.trace.settle import residents, settled
    from memplan.solvers.problem import InfeasibleError, Problem
    from memplan.solvers.registry.run import solve

    def solved(graph):
        for share in SHARES:
            budget = int(share * baseline(graph).peak)
            try:
                return solve("auto", Problem(graph, budget), time_limit).schedule, budget, share
            except InfeasibleError:
                continue
        raise InfeasibleError("no schedule within the plain peak")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    iteration = strangers()[name]()
    try:
        program = settled(iteration)
        graph = graph_from(program, measure_program(program, residents(program, iteration)))
        schedule, budget, share = solved(graph)
        predicted = simulate(graph, schedule).figures.peak
        found = side_by_side(iteration, PlannedStep(iteration, program, schedule, Terms(graph, budget)), 1)
    except MemplanError as error:
        return {"outcome": "refused", "why": str(error)}
    peaks = found.planned.peaks
    off = peaks.device - predicted
    off = 0 if 0 < off <= peaks.beside else off
    result = {"operations": len(graph.operations), "share": share, "off": off, "peak": predicted}
    if not found.comparison.equal:
        return {"outcome": "differs", "why": str(found.comparison), **result}
    return {"outcome": "peak above" if off > 0 else "peak below" if off < 0 else "works", **result}


def run(name, options):
    """The outcome of a model in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--time-limit", str(options.time_limit)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"outcome": "out of time"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    return {"outcome": "crash", "why": (done.stderr.strip().splitlines() or [str(done.returncode)])[-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds to solve in")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a model")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(outcome(options.one, options.time_limit)))
        return
    counts = Counter()
    print(
        "| model | outcome | operations | budget | measured - predicted | s | why |",
        "|---|---|---|---|---|---|---|",
        sep="\n",
    )
    for name in options.models or strangers():
        start = time.perf_counter()
        one = run(name, options)
        counts[one["outcome"]] += 1
        figures = [
            one.get("operations", ""),
            f"{one['share']:.0%}" if "share" in one else "",
            one.get("off", ""),
        ]
        cells = [
            name,
            one["outcome"],
            *figures,
            f"{time.perf_counter() - start:.0f}",
            one.get("why", "")[:200],
        ]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print("\n" + ", ".join(f"{count} {word}" for word, count in counts.most_common()))


if __name__ == "__main__":
    main()
