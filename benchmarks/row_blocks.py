"""Large weights updated at once, and by blocks of rows (memplan/updates/row_blocks.py).

Estimated graphs of models whose embedding has most of the weights, on a GPU's preset, with fused AdamW.
`auto` plans both graphs for each share of the baseline's peak, for `--seconds`. The peak is that of updates
at once.

    python benchmarks/row_blocks.py --gpu a100 --size 32MB --shares 80,60,50,40 --seconds 10 \\
        --allow recompute,offload

A row per model and share: the iteration's time, as a multiple of the baseline's, at once and in blocks; "-"
if no schedule was found. Then the smallest budget that `auto` finds.
"""

from __future__ import annotations

import argparse
import runpy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from memplan.devices.absent_gpu.capability import Capability
from memplan.devices.device.device import StreamDevice
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machines.presets import Preset, find_preset
from memplan.graphs.units import parse_bytes
from memplan.model.iteration import Iteration, Updates, with_targets
from memplan.planner.baseline import baseline
from memplan.profiling.profile.estimate import estimate_program, trace_for
from memplan.program.graph import graph_of
from memplan.solvers.allowed import parse_allow
from memplan.solvers.problem import InfeasibleError, Problem, ValidatedSolution
from memplan.solvers.registry.run import solve
from memplan.solvers.techniques import Technique
from torch.optim import AdamW

EXAMPLES = Path(__file__).parents[1] / "examples"
MEBI = 2**20
TINY = 1

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2, 124 M, 50k tied": (
        "gpt2",
        {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "batch": 1, "length": 256},
    ),
    "Llama, 143 M, 128k × 512": (
        "llama",
        {"layers": 4, "width": 512, "heads": 8, "vocabulary": 128256, "batch": 1, "length": 128},
    ),
    "Llama, 225 M, 32k × 2048, 2 layers": (
        "llama",
        {"layers": 2, "width": 2048, "heads": 16, "vocabulary": 32000, "batch": 1, "length": 128},
    ),
}


def iteration(file: str, arguments: dict[str, Any], size: int) -> Iteration:
    """Build an example's iteration. size: of its blocks, 0 for updates at once."""
    module, inputs, *loss = runpy.run_path(str(EXAMPLES / f"{file}.py"))["build"](**arguments)
    loss_fn, targets = loss or (None, None)
    updates = Updates(AdamW(module.parameters(), fused=True), block=size)
    return Iteration(module, with_targets(inputs, targets), loss_fn, updates)


def estimated(preset: Preset, file: str, arguments: dict[str, Any], size: int) -> Graph:
    build = partial(iteration, file, arguments, size)
    program = trace_for(Capability(*preset.gpu.capability), build)
    costs = estimate_program(program, preset.gpu, None, preset.machine.updates)
    return graph_of(program, costs, machine=preset.machine, block_bytes=StreamDevice.block_bytes)


class Planner(NamedTuple):
    """Searches for plans. seconds: of each."""

    allow: tuple[Technique, ...] | None
    seconds: float

    def time_within(self, graph: Graph, budget: int) -> float | None:
        """Return an iteration's seconds by the plan that `auto` finds, None if it finds none."""
        try:
            return self._solve(graph, budget).figures.time
        except InfeasibleError:
            return None

    def least(self, graph: Graph) -> int | None:
        """Return the smallest budget that `auto` finds."""
        try:
            return self._solve(graph, TINY).figures.least_budget
        except InfeasibleError as error:
            return error.least

    def _solve(self, graph: Graph, budget: int) -> ValidatedSolution:
        problem = Problem(graph, budget, graph.machine, self.allow)
        return solve("auto", problem, self.seconds, bound_seconds=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="a100")
    parser.add_argument("--size", type=parse_bytes, default="32MB")
    parser.add_argument("--shares", default="80,60,50,40")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--allow", type=parse_allow, default=None, help="techniques, as of plan solve")
    parser.add_argument("--models", default="", help="part of their names")
    chosen = parser.parse_args()
    preset, planner = find_preset(chosen.gpu), Planner(chosen.allow, chosen.seconds)
    print("| model | largest weight | share | time at once / in blocks | smallest budget |")
    print("|---|---|---|---|---|")
    for name, (file, arguments) in MODELS.items():
        if chosen.models not in name:
            continue
        both = [estimated(preset, file, arguments, size) for size in (0, chosen.size)]
        before, tensors = baseline(both[0]), both[0].tensors
        largest = int(tensors.bytes[tensors.kind == Kind.PARAMETER].max())
        for share in map(int, chosen.shares.split(",")):
            times = [planner.time_within(graph, before.peak * share // 100) for graph in both]
            texts = ["-" if one is None else f"{one / before.time:.3f}" for one in times]
            print(f"| {name} | {largest / MEBI:.0f} MiB | {share} % | {' / '.join(texts)} | |", flush=True)
        found = [planner.least(graph) for graph in both]
        budgets = ["-" if one is None else f"{one / before.peak:.1%}" for one in found]
        sizes = ["-" if one is None else f"{one / MEBI:.0f}" for one in found]
        print(f"| {name} | | | | {' / '.join(budgets)}, {' / '.join(sizes)} MiB |", flush=True)


if __name__ == "__main__":
    main()
