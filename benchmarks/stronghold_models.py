"""STRONGHOLD on models of its paper (table I, hidden size 2560), simulated on the machine of its name.

    python benchmarks/stronghold_models.py [layers …] [--batch 4] [--tflops 10] [--host-rate 8GB]

Sequences of 1024, float32, vocabulary 30,000 as in the paper's estimates. What a V100 attains and how fast
its host updates weights are not published: both are arguments. The paper's figures are measured: 1.7 B
trains without offloading, 39.5 B with; ZeRO-Offload and ZeRO-Infinity reach less than 57 % of the plain
speed at 1.7 B.
"""

from __future__ import annotations

import argparse
from time import perf_counter

from memplan.graphs.graph import Graph
from memplan.graphs.machines.presets import find_preset
from memplan.graphs.units import parse_bytes
from memplan.instances.models import Transformer
from memplan.instances.training import Rates, Training
from memplan.instances.transformer import model_flops, transformer
from memplan.planner.plain import baseline
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry import run as registry

MACHINE = find_preset("stronghold").machine
SOLVERS = ("stronghold", "zero-offload", "zero-infinity")


def model(layers: int) -> Transformer:
    return Transformer(f"gpt-{layers}", layers, 2560, 4 * 2560, 16, 30_000, "STRONGHOLD, table I", tied=True)


def report(graph: Graph, flops: float) -> None:
    """A line for the plain schedule, one for each solver."""
    plain = baseline(graph)
    print(f"{graph.name}: plain {plain.time:.3f} s, peak {plain.peak / 1e9:.2f} GB")
    for name in SOLVERS:
        lines: list[str] = []
        start = perf_counter()
        try:
            problem = Problem(graph, MACHINE.device_capacity or 0, MACHINE)
            found = registry.solve(name, problem, None, None, lines.append, bound_seconds=0.0)
        except InfeasibleError as refusal:
            print(f"  {name}: {refusal}")
            continue
        figures = found.figures
        print(
            f"  {name}: {figures.time:.3f} s simulated, {flops / figures.time / 1e12:.2f} TFLOP/s, device "
            f"{figures.peak / 1e9:.2f} GB, host {figures.host_peak / 1e9:.1f} GB, solved in "
            f"{perf_counter() - start:.1f} s" + "".join(f"\n    {line}" for line in lines[-1:])
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("layers", nargs="*", type=int)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tflops", type=float, default=10.0)
    parser.add_argument("--host-rate", default="8GB")
    arguments = parser.parse_args()
    device_rate = MACHINE.updates.device or 1.0
    rates = Rates(arguments.tflops * 1e12, device_rate, float(parse_bytes(arguments.host_rate)))
    training = Training(arguments.batch, 1024, weight_bytes=4, activation_bytes=4, granularity="layer")
    for layers in arguments.layers or (20, 50, 500):
        graph = transformer(model(layers), training, rates, MACHINE)
        report(graph, model_flops(model(layers), training))


if __name__ == "__main__":
    main()
