"""Small weights updated each alone, and in buckets (memplan/updates/buckets.py), on links with a latency.

Estimated graphs of models on a GPU's preset, with fused AdamW, whose links to and from the host take
`--latency` for each copy. Solvers plan both graphs within the same budget: `optimizer-offload` with all
states on the host and updates there, `paged-optimizer` with states that come for their updates, and `auto`,
which searches for `--seconds`. The budget is `--share` of the baseline's peak; of the two policies all of it.

    python benchmarks/buckets.py --gpu a100 --latency 10us --size 4MB --share 80 --seconds 20

With `--batches` updates are of several batches: each row is of all of them.

A row per model and solver: copies of an update, time that links are busy, the time of its iterations.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from memplan.devices.absent_gpu.capability import Capability
from memplan.devices.device.device import StreamDevice
from memplan.graphs.errors import MemplanError
from memplan.graphs.graph import Graph, Phase
from memplan.graphs.machine import Link, Machine
from memplan.graphs.machines.presets import Preset, find_preset
from memplan.graphs.units import parse_bytes, parse_seconds
from memplan.model.iteration import Iteration, Updates, with_targets
from memplan.model.lora import parse_low_rank, with_adapters
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.planner.simulator.part import part_of
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.profile.estimate import estimate_program, trace_for
from memplan.program.graph import graph_of
from memplan.program.program import Program
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.updates.parts import adding
from torch.optim import AdamW

EXAMPLES = Path(__file__).parents[1] / "examples"
MILLISECONDS = 1e3
LARGE = {"layers": 12, "width": 768, "heads": 12}


class Model(NamedTuple):
    """A model of an example. rank: of its LoRA adapters, which alone are trained; None to train all."""

    file: str
    arguments: dict[str, Any]
    rank: int | None = None


MODELS = {
    "BERT-base": Model("bert", {**LARGE, "vocabulary": 30522, "batch": 8, "length": 256}),
    "GPT-2, 124 M": Model("gpt2", {**LARGE, "vocabulary": 50257, "length": 512}),
    "ViT-base": Model("vit", {**LARGE, "side": 224, "patch": 16, "classes": 1000, "batch": 16}),
    "LoRA of a Llama, 254 M": Model(
        "llama", {"layers": 16, "width": 1024, "heads": 16, "vocabulary": 32000, "length": 512}, rank=16
    ),
    "LoRA of Llama-2-7B": Model("llama2_7b", {"batch": 1, "length": 1024}, rank=16),
}


def iteration(model: Model, batches: int, size: int) -> Iteration:
    """Build an example's iteration. batches: of an update. size: of its buckets, 0 for none."""
    module, inputs, *loss = runpy.run_path(str(EXAMPLES / f"{model.file}.py"))["build"](**model.arguments)
    if model.rank is not None:
        with_adapters(module, parse_low_rank(f"r={model.rank}"))
    loss_fn, targets = loss or (None, None)
    trained = [each for each in module.parameters() if each.requires_grad]
    updates = Updates(AdamW(trained, fused=True), bucket=size)
    return Iteration(module, with_targets(inputs, targets), loss_fn, updates, accumulate=batches)


class Estimates(NamedTuple):
    """Estimated graphs of an update's last batch, and of each before it.

    places: of the operations of a batch before it, among the last one's. before: number of these batches.
    """

    last: Graph
    adding: Graph
    places: Sequence[int]
    before: int


def estimated(preset: Preset, machine: Machine, model: Model, batches: int, size: int) -> Estimates:
    program = trace_for(Capability(*preset.gpu.capability), partial(iteration, model, batches, size))
    part = adding(program)

    def graph(program: Program) -> Graph:
        costs = estimate_program(program, preset.gpu, None, preset.machine.updates)
        return graph_of(program, costs, machine=machine, block_bytes=StreamDevice.block_bytes)

    return Estimates(graph(program), graph(part.program), part.places, batches - 1)


def with_latency(machine: Machine, latency: float) -> Machine:
    links = machine.links
    slower = {
        name: replace(link, latency=latency) for name in ("d2h", "h2d") if (link := getattr(links, name))
    }
    return replace(machine, links=replace(links, **slower))


class Outcome(NamedTuple):
    """Copies between device and host of some iterations, and seconds. busy: of the busier direction."""

    copies: int
    busy: float
    time: float

    def after(self, other: Outcome, times: int) -> Outcome:
        """Return what these take together with so many times others."""
        copies, busy, time = other
        return Outcome(self.copies + times * copies, self.busy + times * busy, self.time + times * time)


def outcome(graph: Graph, schedule: Schedule, time: float) -> Outcome:
    machine = graph.machine
    assert machine is not None
    found = {Verb.OFFLOAD: list[int](), Verb.PREFETCH: list[int]()}
    for verb, x, _where in schedule.rows():
        if verb in found:
            found[Verb(verb)].append(int(graph.tensors.bytes[x]))

    def seconds(link: Link | None, sizes: Sequence[int]) -> float:
        assert link is not None
        return sum(float(link.seconds(float(size))) for size in sizes)

    busy = seconds(machine.links.d2h, found[Verb.OFFLOAD]), seconds(machine.links.h2d, found[Verb.PREFETCH])
    return Outcome(sum(map(len, found.values())), max(busy), time)


def planned(graphs: Estimates, solver: str, budget: int, seconds: float) -> Outcome | None:
    """Return what a solver's plan takes, None if it has none."""
    graph = graphs.last
    updates = int((graph.operations.phase == Phase.UPDATE).sum())
    all_of_it = {
        "optimizer-offload": {"fraction": "1", "manner": "megatron"},
        "paged-optimizer": {"updates": str(updates), "smallest": "0"},
    }
    settings = all_of_it.get(solver)
    limit = seconds if solver == "auto" else None
    try:
        found = solve(solver, Problem(graph, budget, graph.machine), limit, settings, bound_seconds=0)
    except MemplanError as error:
        print(f"<!-- {solver}: {error} -->")
        return None
    last = outcome(graph, found.schedule, found.figures.time)
    if not graphs.before:
        return last
    machine, part = graph.machine, graphs.adding
    schedule = part_of(found.schedule, part, graphs.places, budget=budget, machine=machine)
    time = simulate(part, schedule, budget=budget, machine=machine).figures.time
    return last.after(outcome(part, schedule, time), graphs.before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="a100")
    parser.add_argument("--latency", type=parse_seconds, default="10us")
    parser.add_argument("--size", type=parse_bytes, default="4MB")
    parser.add_argument("--share", type=int, default=80)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--solvers", default="optimizer-offload,paged-optimizer,auto")
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--models", default="", help="part of their names")
    chosen = parser.parse_args()
    preset = find_preset(chosen.gpu)
    machine = with_latency(preset.machine, chosen.latency)
    print("| model | solver | copies, alone / buckets | links busy | time | gain |")
    print("|---|---|---|---|---|---|")
    for name, model in MODELS.items():
        if chosen.models not in name:
            continue
        graphs = [estimated(preset, machine, model, chosen.batches, size) for size in (0, chosen.size)]
        peak = max(baseline(each.last).peak for each in graphs)
        for solver in chosen.solvers.split(","):
            budget = peak * chosen.share // 100 if solver == "auto" else peak
            row(name, solver, [planned(each, solver, budget, chosen.seconds) for each in graphs])


def row(name: str, solver: str, found: Sequence[Outcome | None]) -> None:
    """Print a row of the table. found: alone, and in buckets."""
    alone, together = found
    if alone is None or together is None:
        print(f"| {name} | {solver} | - | - | - | - |", flush=True)
        return
    both = (alone, together)
    busy = " / ".join(f"{one.busy * MILLISECONDS:.1f}" for one in both)
    times = " / ".join(f"{one.time * MILLISECONDS:.1f}" for one in both)
    copies = " / ".join(f"{one.copies:,}" for one in both)
    gain = 1 - together.time / alone.time
    print(f"| {name} | {solver} | {copies} | {busy} ms | {times} ms | {gain:.1%} |", flush=True)


if __name__ == "__main__":
    main()
