"""MemFerry and GO-MemFerry on models of the paper's sizes, simulated on the machines of their name.

    python benchmarks/memferry_models.py [layers …] [--gpu v100] [--rereads 3] [--rewrites 1] [--largest]

Decoders of hidden size 2560 and sequences of 1024, float32, Adam on the CPU, layers run again; published
choices of weights. MemFerry keeps the buffers of all gradients on the device, GO-MemFerry writes all
gradients to the host; `reserve` is in between. What the GPUs attain, how fast the hosts update weights and
how often a byte goes over the link (rereads of weights, rewrites of gradients) are not published: all are
arguments. The paper's figures are measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine
from memplan.graphs.machines.presets import find_preset
from memplan.graphs.transformations.direct_access import with_direct_access, with_direct_gradients
from memplan.graphs.units import parse_bytes
from memplan.instances.models import Transformer
from memplan.instances.training import Rates, Training
from memplan.instances.transformer import transformer
from memplan.solvers.problem import InfeasibleError, Problem, Solution
from memplan.solvers.registry import run as registry

ROOM = 2**50
"""Bytes of a device on which nothing has to leave."""

PUBLISHED = {"choice": "published", "activations": "checkpoint", "twice": "no"}
MEMFERRY = PUBLISHED | {"gradients": "copied", "reserve": "1"}


def written(reserve: float) -> dict[str, str]:
    """GO-MemFerry's settings."""
    return PUBLISHED | {"gradients": "direct", "reserve": str(reserve)}


def model(layers: int) -> Transformer:
    return Transformer(
        f"gpt-{layers}", layers, 2560, 4 * 2560, 20, 32_768, "MemFerry, section V-A", tied=True
    )


def graph_of(layers: int, machine: Machine, given: argparse.Namespace) -> Graph:
    rates = Rates(given.tflops * 1e12, machine.updates.device or 1.0, float(parse_bytes(given.host_rate)))
    training = Training(given.batch, 1024, weight_bytes=4, activation_bytes=4)
    graph = transformer(model(layers), training, rates, machine)
    links = machine.links
    assert links.h2d
    assert links.d2h
    graph = with_direct_access(graph, links.h2d.rate, rereads=given.rereads)
    return with_direct_gradients(graph, links.d2h.rate, rewrites=given.rewrites)


def solved(
    graph: Graph, settings: Mapping[str, str] | None, budget: int, machine: Machine
) -> Solution | None:
    """With MemFerry's settings; None: ZeRO-Offload."""
    try:
        name = "memferry" if settings else "zero-offload"
        return registry.solve(name, Problem(graph, budget, machine), None, settings, bound_seconds=0.0)
    except InfeasibleError:
        return None


def largest(settings: Mapping[str, str] | None, machine: Machine, given: argparse.Namespace) -> int:
    """Layers of the largest model that fits the GPU, by bisection."""
    capacity = machine.device_capacity or 0
    low, high = 1, 512
    while high - low > 1:
        middle = (low + high) // 2
        fits = solved(graph_of(middle, machine, given), settings, capacity, machine)
        low, high = (middle, high) if fits else (low, middle)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("layers", nargs="*", type=int)
    parser.add_argument("--gpu", choices=("v100", "a100"), default="v100")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tflops", type=float, default=10.0)
    parser.add_argument("--host-rate", default="8GB")
    parser.add_argument("--rereads", type=float, default=3.0)
    parser.add_argument("--rewrites", type=float, default=1.0)
    parser.add_argument("--largest", action="store_true", help="bisect for the largest models too")
    given = parser.parse_args()
    machine = find_preset(f"memferry-{given.gpu}").machine
    free = Machine(links=machine.links, updates=machine.updates)
    ways = {"zero-offload": None, "memferry": MEMFERRY}
    ways |= {f"go, reserve {reserve:g}": written(reserve) for reserve in (0.75, 0.5, 0.25, 0.0)}
    for layers in given.layers or (8, 16, 29):
        graph = graph_of(layers, free, given)
        print(f"{layers} layers, {model(layers).parameters / 1e9:.2f} B")
        for name, settings in ways.items():
            found = solved(graph, settings, ROOM, free)
            assert found
            figures = found.figures
            print(f"  {name:16} {figures.time:.4f} s, device {figures.least_budget / 1e9:.2f} GB")
    for name in ("zero-offload", "memferry", "go, reserve 0") if given.largest else ():
        layers = largest(ways[name], machine, given)
        print(f"largest, {name}: {layers} layers, {model(layers).parameters / 1e9:.2f} B")


if __name__ == "__main__":
    main()
