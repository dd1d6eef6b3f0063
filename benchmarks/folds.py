"""What a choice between kernels with and without folded forward parts could give: each alone, at each budget.

Folding is decided before the plan is made. If solvers chose for each kernel, plans would be at least as
fast as the faster of the two here. Times are predicted, over the plain schedule's without kernels.

    python benchmarks/folds.py [--models gpt2,unet] [--shares 1,0.6,0.5,0.4] [--seconds 8]
"""

from __future__ import annotations

import argparse
from unittest.mock import patch

import torch
from compiled import path_of
from memplan.graphs.errors import MemplanError
from memplan.graphs.graph import Graph
from memplan.model.file import load_model_file
from memplan.planner.baseline import baseline
from memplan.profiling.fusion import choice
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.tracing.output_layouts import residents, trace_real_layouts


def figure(graph: Graph, budget: int, plain: float, seconds: float) -> str:
    try:
        found = solve("auto", Problem(graph, budget), seconds, bound_seconds=0)
    except MemplanError:
        return "–"
    return f"{found.figures.time / plain:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="gpt2,unet")
    parser.add_argument("--shares", default="1,0.6,0.5,0.4")
    parser.add_argument("--seconds", type=float, default=8, help="for the solver")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models.split(","):
        iteration = load_model_file(path_of(name)).build()
        program = trace_real_layouts(iteration)
        measured = measure_program(program, residents(program, iteration))
        plain = baseline(graph_from(program, measured))
        folded = choice.chosen(program, measured)
        with patch.object(choice, "FOLDED", 0.0):
            alone = choice.chosen(program, measured)
        for share in map(float, options.shares.split(",")):
            budget = int(share * plain.peak)
            figures = [
                figure(graph_from(made.program, made.measured), budget, plain.time, options.seconds)
                for made in (folded, alone)
            ]
            print(f"| {name} | {share:.0%} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
