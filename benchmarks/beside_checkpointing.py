"""Plans compared with `torch.utils.checkpoint` around each layer, at the memory that it takes.

Protocol. Models of `examples/` with lists of layers, forward and backward, gradients dropped, one thread.
Each layer's forward is wrapped; the peak is measured. Then `auto` plans for that many bytes. Each variant
takes turns with eager PyTorch in one process; each turn gives a ratio of processor times, and the figures are
the median and the quartiles of these. Peaks are those of live storage, weights, buffers and inputs included.

    python benchmarks/beside_checkpointing.py [--models gpt2,bert,vit,t5] [--rounds 25] [--seconds 30]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from time import process_time
from typing import Any

import torch
from gpu.contestants import layers_of
from memplan.devices.measuring.live_bytes import live_peak
from memplan.model.file import load_model_file
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline
from memplan.profiling.compare.eager import run_eager
from memplan.profiling.compare.peaks import resident_bytes
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents, trace_real_layouts
from torch.utils.checkpoint import checkpoint

EXAMPLES = Path(__file__).parents[1] / "examples"


def compare(name: str, rounds: int, seconds: float) -> None:
    iteration: Iteration = load_model_file(str(EXAMPLES / f"{name}.py")).build()
    program = trace_real_layouts(iteration)
    graph = graph_from(program, measure_program(program, residents(program, iteration)))
    plain, always = baseline(graph), resident_bytes(program)
    run_eager(iteration)
    layers = layers_of(iteration.module)
    forwards = [layer.forward for layer in layers]

    def checkpointed() -> None:
        for layer, forward in zip(layers, forwards, strict=True):
            layer.forward = lambda *a, forward=forward, **k: checkpoint(forward, *a, use_reentrant=False, **k)
        try:
            run_eager(iteration)
        finally:
            for layer in layers:
                del layer.forward

    row(iteration, "checkpoint each layer", checkpointed, always, plain.peak, rounds)
    peak = always + live_peak(checkpointed).peak_bytes
    found = solve("auto", Problem(graph, peak), seconds, bound_seconds=5)
    step = PlannedStep(iteration, program, found.schedule)
    planned = found.figures.time / plain.time
    row(
        iteration,
        f"plan ({planned:.3f} planned)",
        lambda: step.run(iteration.inputs),
        always,
        plain.peak,
        rounds,
    )


def row(
    iteration: Iteration, what: str, run: Callable[[], Any], always: int, plain_peak: int, rounds: int
) -> None:
    run()
    peak = always + live_peak(run).peak_bytes
    ratios = [timed(run) / timed(lambda: run_eager(iteration)) for _ in range(rounds)]
    low, middle, high = quantiles(ratios, n=4)
    size = f"{peak / 2**20:.1f} MiB, {peak / plain_peak:.0%}"
    print(f"| {what} | {middle:.3f} ({low:.3f} to {high:.3f}) | {size} |", flush=True)


def timed(run: Callable[[], Any]) -> float:
    start = process_time()
    run()
    return process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="gpt2,bert,vit,t5")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=30, help="for the solver")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models.split(","):
        print(name, flush=True)
        compare(name, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
