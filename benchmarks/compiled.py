"""Compiled operations in a plan, beside the plan without them and beside `torch.compile` on less memory.

Protocol. Models of `examples/`, forward and backward, gradients dropped. Budgets are shares of the plain
peak of the graph without compiled operations. `torch.compile` runs with `activation_memory_budget`, whose
partitioner decides what is made again. Each variant takes turns with plain PyTorch in one process, and its
figure is the ratio of the medians: a machine that slows down slows both. The time is the process's own, on
one thread. Peaks are those of live storage, weights, buffers and inputs included.

    python benchmarks/compiled.py [--models gpt2,resnet50,unet] [--shares 1,0.6,0.4] [--compile 1,0.5,0.2]

A model is one of `examples/`, or `path.py[:entry]`. --channels-last: the layout of images and kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.errors import MemplanError
from memplan.model.file import load_model_file
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline
from memplan.profiling.compare.accuracy import accuracy
from memplan.profiling.compare.eager import run_eager
from memplan.profiling.compare.peaks import resident_bytes
from memplan.profiling.fusion.choice import chosen
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents, trace_real_layouts
from torch._functorch import config
from torch.utils._pytree import tree_map

EXAMPLES = Path(__file__).parents[1] / "examples"


class Model:
    def __init__(self, path: str, rounds: int, seconds: float, *, channels_last: bool) -> None:
        self.iteration: Iteration = load_model_file(path).build()
        if channels_last:
            self.iteration = in_channels_last(self.iteration)
        self.rounds, self.seconds = rounds, seconds
        self.program = trace_real_layouts(self.iteration)
        measured = measure_program(self.program, residents(self.program, self.iteration))
        self.graph = graph_from(self.program, measured)
        start = perf_counter()
        found = chosen(self.program, measured)
        self.fused = found.program
        self.fused_graph = graph_from(found.program, found.measured)
        before, after = baseline(self.graph), baseline(self.fused_graph)
        print(
            f"{path}: {len(self.program.operations)} operations, {len(found.program.operations)} with "
            f"{len(found.groups)} compiled (in {perf_counter() - start:.0f} s); predicted plain "
            f"{after.time / before.time:.3f} of the time, {after.peak / before.peak:.3f} of the peak; "
            f"{accuracy(self.iteration, self.program, self.fused, found.kernels)}",
            flush=True,
        )
        run_eager(self.iteration)

    def plans(self, shares: list[float]) -> None:
        for share in shares:
            budget = int(share * baseline(self.graph).peak)
            for name, program, graph in (
                ("plan", self.program, self.graph),
                ("plan, compiled", self.fused, self.fused_graph),
            ):
                try:
                    found = solve("auto", Problem(graph, budget), self.seconds, bound_seconds=0)
                except MemplanError as error:
                    print(f"| {name}, {share:.0%} | {error} |", flush=True)
                    continue
                step = PlannedStep(self.iteration, program, found.schedule)
                self.row(f"{name}, {share:.0%}", lambda step=step: step.run(self.iteration.inputs))

    def compiled(self, budgets: list[float]) -> None:
        for budget in budgets:
            torch._dynamo.reset()
            config.activation_memory_budget = budget
            module, loss_fn = torch.compile(self.iteration.module), self.iteration.loss_fn
            given: Any = self.iteration.inputs
            inputs, targets = (given.inputs, given.targets) if hasattr(given, "targets") else (given, None)

            def run(
                module: Any = module, inputs: Any = inputs, targets: Any = targets, loss_fn: Any = loss_fn
            ) -> None:
                output = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
                loss = output.loss if loss_fn is None else loss_fn(output, targets)
                loss.backward()
                for parameter in module.parameters():
                    parameter.grad = None

            self.row(f"torch.compile, {budget:g}", run)

    def row(self, name: str, run: Callable[[], Any]) -> None:
        run()
        peak = resident_bytes(self.program) + live_peak(run).peak_bytes
        own, eager = [], []
        for _ in range(self.rounds):
            own.append(timed(run))
            eager.append(timed(lambda: run_eager(self.iteration)))
        print(
            f"| {name} | {median(own) / median(eager):.3f} | {median(own) * 1e3:.0f} ms | "
            f"{peak / 2**20:.1f} MiB, {peak / baseline(self.graph).peak:.0%} |",
            flush=True,
        )


def in_channels_last(iteration: Iteration) -> Iteration:
    form: Any = {"memory_format": torch.channels_last}
    inputs: Any = tree_map(lambda x: x.contiguous(**form) if x.dim() == 4 else x, iteration.inputs)
    return iteration._replace(module=iteration.module.to(**form), inputs=inputs)


def path_of(name: str) -> str:
    """A model file, or one of `examples/`."""
    return name if ".py" in name else str(EXAMPLES / f"{name}.py")


def timed(run: Callable[[], Any]) -> float:
    start = process_time()
    run()
    return process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="gpt2,resnet50,unet")
    parser.add_argument("--shares", default="1,0.6,0.4")
    parser.add_argument("--compile", default="1,0.5,0.2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--seconds", type=float, default=20, help="for the solver")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models.split(","):
        model = Model(path_of(name), options.rounds, options.seconds, channels_last=options.channels_last)
        model.plans([float(share) for share in options.shares.split(",") if share])
        model.compiled([float(budget) for budget in options.compile.split(",") if budget])


if __name__ == "__main__":
    main()
