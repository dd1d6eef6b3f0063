"""Clipped updates that wait for the norm, and early ones (memplan/updates/early.py), within equal budgets.

Estimated graphs of models on a GPU's preset, with fused AdamW and clipping. Budgets are shares of the
baseline whose updates wait. Per budget `auto` plans both graphs: without a machine, by recomputation alone;
with it, by offloading and updates on the CPU too. The time of early updates has their copies to the journal:
from the device at the link's rate, on the host as fast as AdamW there reads and writes.

    python benchmarks/early_updates.py --gpu a100 --seconds 10 --shares 100,80,60

Without a machine rows of the Trainer follow: its own updates after the plan, for which all gradients and the
states stay on the device, and early ones in the plan (`optimize_trainer(…, early_updates=True)`).

A row per case: peak and time of both, and the time of an iteration that is rolled back, which is two.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from memplan.devices.absent_gpu.capability import Capability
from memplan.devices.device.device import StreamDevice
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Machine
from memplan.graphs.machines.presets import Preset, find_preset
from memplan.model.clipping import Clipping
from memplan.model.iteration import Iteration, Updates, with_targets
from memplan.planner.baseline import baseline
from memplan.profiling.profile.estimate import estimate_program, trace_for, with_journal
from memplan.program.graph import graph_of
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry.run import solve
from memplan.updates.early import updates_early
from torch.optim import AdamW

EXAMPLES = Path(__file__).parents[1] / "examples"
GIB, MILLISECONDS = 2**30, 1e3
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "GPT-2, 124 M": ("gpt2", {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "length": 512}),
    "Llama, 254 M": (
        "llama",
        {"layers": 16, "width": 1024, "heads": 16, "vocabulary": 32000, "batch": 1, "length": 512},
    ),
    "ResNet-50": ("resnet50", {"batch": 16, "side": 224}),
}


def iteration(file: str, arguments: Mapping[str, int], *, early: bool | None) -> Iteration:
    """Build an example's iteration with clipped updates. early: None for a plan without updates."""
    module, inputs, *loss = runpy.run_path(str(EXAMPLES / f"{file}.py"))["build"](**arguments)
    loss_fn, targets = loss or (None, None)
    updates = Updates(AdamW(module.parameters(), fused=True), clipping=Clipping(1.0), early=bool(early))
    return Iteration(module, with_targets(inputs, targets), loss_fn, None if early is None else updates)


def estimated(preset: Preset, build: Callable[[], Iteration], *, moves: bool) -> Graph:
    """Estimate the graph of an iteration, with the copies to the journal if its updates are early."""
    program = trace_for(Capability(*preset.gpu.capability), build)
    costs = estimate_program(program, preset.gpu, None, preset.machine.updates)
    if updates_early(program):
        costs = with_journal(costs, program, preset, moves=moves)
    machine = preset.machine if moves else None
    return graph_of(program, costs, machine=machine, block_bytes=StreamDevice.block_bytes)


def planned(graph: Graph, budget: int, machine: Machine | None, seconds: float) -> tuple[int, float] | None:
    """Return peak and time of a plan, None if there is none."""
    try:
        found = solve("auto", Problem(graph, budget, machine), seconds, bound_seconds=0).figures
    except InfeasibleError:
        return None
    return found.peak, found.time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="a100")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--shares", default="100,80,60")
    chosen = parser.parse_args()
    preset = find_preset(chosen.gpu)
    print("| model | budget | machine | peak, waiting / early | time, waiting / early | rolled back |")
    print("|---|---|---|---|---|---|")
    for name, (file, arguments) in MODELS.items():
        builds = [partial(iteration, file, arguments, early=is_early) for is_early in (False, True, None)]
        for moves in (False, True):
            where = preset.name if moves else "-"
            graphs = [estimated(preset, build, moves=moves) for build in builds[:2]]
            both = [baseline(graph) for graph in graphs]
            row(name, "baseline", where, [(one.peak, one.time) for one in both])
            budgets = {share: both[0].peak * share // 100 for share in map(int, chosen.shares.split(","))}
            machine = preset.machine if moves else None
            found = {
                share: [planned(graph, budget, machine, chosen.seconds) for graph in graphs]
                for share, budget in budgets.items()
            }
            for share, figures in found.items():
                row(name, f"{share} %", where, figures)
            if moves:
                continue
            own = estimated(preset, builds[2], moves=False)
            outside = outside_of_plans(graphs[0])
            alone = baseline(own)
            row(
                name,
                "baseline",
                "Trainer",
                [after(alone.peak, alone.time, *outside), (both[1].peak, both[1].time)],
            )
            for share, budget in budgets.items():
                plan = planned(own, budget - outside[0], None, chosen.seconds)
                row(name, f"{share} %", "Trainer", [plan and after(*plan, *outside), found[share][1]])


def outside_of_plans(graph: Graph) -> tuple[int, float]:
    """Return the bytes of the states, and the time of norms and updates, of a graph that has them."""
    states = int(graph.tensors.bytes[graph.tensors.kind == Kind.OPTIMIZER_STATE].sum())
    names = graph.operations.name
    seconds = sum(
        graph.operation(place).time
        for place, phase in enumerate(graph.operations.phase.tolist())
        if phase == Phase.UPDATE or names[place].endswith(("/norm", "/clip"))
    )
    return states, seconds


def after(peak: int, time: float, states: int, seconds: float) -> tuple[int, float]:
    """Return peak and time of a plan, and of updates after it."""
    return peak + states, time + seconds


def row(name: str, budget: str, where: str, found: Sequence[tuple[int, float] | None]) -> None:
    """Print a row of the table. found: peak and time of waiting and early updates."""
    peaks = " / ".join("-" if one is None else f"{one[0] / GIB:.2f}" for one in found)
    times = " / ".join("-" if one is None else f"{one[1] * MILLISECONDS:.1f}" for one in found)
    twice = "-" if found[1] is None else f"{2 * found[1][1] * MILLISECONDS:.1f}"
    print(f"| {name} | {budget} | {where} | {peaks} GiB | {times} ms | {twice} ms |", flush=True)


if __name__ == "__main__":
    main()
