"""Offmate on the language models of its paper (Zhao, thesis, 2024, 4.8.1), simulated on the paper's machine.

    python benchmarks/offmate_llms.py [model …] [--budget 10GB …] [--granularity layer] [--set key=value …]

The machine: an RTX 3060 with 12 GB, 128 GB of host memory, 10.4 GB/s each way; AdamW updates 16.6 GB/s of
weights on the device and 1.1 GB/s on the CPU. Batch 4, sequences of 512, states of the weights' type, no
master copies. Times are FLOP over a rate: in float32 the one at which a plain iteration of Llama-2-7B takes
the published 10.9 s, in bfloat16 twice that (assumed: tensor cores). The published overhead of Llama-2-7B is
20 %, measured; all figures here are simulated.

Per model and budget: the program's time with fractions, then with options and updates chosen, the simulated
time, its overhead over the plain iteration on a device of any size, the bound, peaks, seconds to solve.
"""

from __future__ import annotations

import argparse
from time import perf_counter

from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import with_updates
from memplan.graphs.units import parse_bytes
from memplan.instances.models import model_named
from memplan.instances.transformer import Rates, Training, timed, transformer
from memplan.planner.plain import baseline
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry import run as registry

MACHINE = Machine(12 * 10**9, 128 * 10**9, None, Links(10.4e9, 10.4e9))
DEVICE_RATE, HOST_RATE = 16.6e9, 1.1e9
PUBLISHED_SECONDS = 10.9
MODELS = {"llama-2-7b": 4, "phi-2": 4, "llama-2-13b": 2}
"""With the bytes of an element."""


def training_graph(name: str, granularity: str = "operation") -> Graph:
    """The training of one of the models on the machine above."""
    reference = timed(_graph("llama-2-7b", 4, 1.0, granularity), PUBLISHED_SECONDS)
    again = baseline(_graph("llama-2-7b", 4, 1.0, granularity)).time
    updates = reference.operations.time[reference.operations.phase == 3].sum()
    flops = (again - updates) / (PUBLISHED_SECONDS - updates)
    width = MODELS[name]
    return _graph(name, width, flops * 4 / width, granularity)


def _graph(name: str, width: int, flops: float, granularity: str) -> Graph:
    training = Training(4, 512, width, width, width, "none", granularity=granularity, keep_scores=True)
    graph = transformer(model_named(name), training, Rates(flops, DEVICE_RATE, HOST_RATE), MACHINE)
    return with_updates(
        graph, optimizer="adamw", when="in-backward", device_rate=DEVICE_RATE, host_rate=HOST_RATE
    )


def report(name: str, budget: int, granularity: str, time_limit: float, settings: dict[str, str]) -> None:
    graph = training_graph(name, granularity)
    plain = baseline(graph)
    lines: list[str] = []
    start = perf_counter()
    try:
        solution = registry.solve("offmate", Problem(graph, budget), time_limit, settings, lines.append)
    except InfeasibleError as error:
        print(f"{name:<12} {budget / 1e9:5.1f} GB: {error}", flush=True)
        return
    figures, seconds = solution.figures, perf_counter() - start
    print(
        f"{name:<12} budget {budget / 1e9:5.1f} GB  plain {plain.time:.3f} s at {plain.peak / 1e9:.1f} GB  "
        f"simulated {figures.time:.3f} s  overhead {figures.time / plain.time - 1:+.1%}  "
        f"bound {solution.lower_bound:.3f} s  device {figures.peak / 1e9:.2f} GB  "
        f"host {figures.host_peak / 1e9:.1f} GB  "
        f"solved in {solution.seconds:.0f} s ({seconds:.0f} s with bounds)",
        *(f"\n{'':<12} {line}" for line in lines),
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--budget", nargs="*", default=["10GB", "8GB", "6GB"])
    parser.add_argument("--granularity", default="operation")
    parser.add_argument("--time-limit", type=float, default=110.0)
    parser.add_argument("--set", nargs="*", default=[])
    chosen = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in chosen.set)
    for model in chosen.models:
        for amount in chosen.budget:
            report(model, parse_bytes(amount), chosen.granularity, chosen.time_limit, settings)
