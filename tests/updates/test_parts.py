"""The parts of an update over several batches: random schedules of the whole on the hostile device, cut down
to each part. Bitwise eager's, in the memory planned, each tensor where the next part looks for it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hostile import Lateness, blocks
from memplan.graphs.graph import Graph
from memplan.model.clipping import Clipping
from memplan.model.iteration import Iteration, Updates
from memplan.planner.simulator.part import part_of
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.eager import run_eager
from memplan.program.graph import Cost, graph_of
from memplan.program.program import Program
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from memplan.updates.clipping import clip
from memplan.updates.parts import Part, adding, updating
from not_none import not_none
from torch import Tensor, nn
from transfers import MACHINE, absent, in_order, wandering, with_modes

MANY = 3


def seeded(make, when, clipping, bucket=0) -> Iteration:
    torch.manual_seed(0)
    iteration = blocks()
    optimizer = make(iteration.module.parameters())
    return iteration._replace(updates=Updates(optimizer, when, clipping, bucket=bucket), accumulate=MANY)


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-2)


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, 0.9, dampening=0.5)


def in_blocks(program: Program) -> Program:
    sizes = [storage._replace(bytes=-(-storage.bytes // 512) * 512) for storage in program.storages]
    return replace(program, storages=sizes)


def costs(program: Program) -> list[Cost]:
    """Of all that runs here the coefficient alone takes memory beside its results."""
    return [Cost(1.0, 2048 * (operation.call.target is clip)) for operation in program.operations]


def unmeasured(part: Part, whole: Graph) -> Graph:
    graph = graph_of(part.program, costs(part.program), block_bytes=512)
    modes = {n: whole.operations.modes[x] for n, x in enumerate(part.places) if x in whole.operations.modes}
    return replace(graph, operations=replace(graph.operations, modes=modes))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bucket", [0, 2**20], ids=["alone", "in buckets"])
@pytest.mark.parametrize("seed", range(8))
def test_parts_of_random_schedules(seed: int, bucket: int) -> None:
    rng = random.Random(seed)
    make, when = rng.choice((adamw, momentum)), rng.choice(("in-backward", "in-backward", "after"))
    clipping = Clipping(0.05) if rng.random() < 0.4 else None
    iteration, baseline = seeded(make, when, clipping, bucket), seeded(make, when, clipping)
    program = in_blocks(trace(iteration))
    graph = graph_of(program, costs(program), block_bytes=512)
    modes = with_modes(graph, program, rng).operations.modes
    kept = {x: tuple(mode for mode in of if mode.on_host) for x, of in modes.items()}
    graph = replace(
        graph, operations=replace(graph.operations, modes={x: of for x, of in kept.items() if of})
    )
    schedule = wandering(graph, rng) if seed % 2 else absent(graph, in_order(graph), rng)
    whole = simulate(graph, schedule, machine=MACHINE).figures
    device = Lateness(seed).device()
    steps, peaks = (
        {
            "last": PlannedStep(
                iteration, program, schedule, Terms(graph, whole.least_budget, MACHINE, device=device)
            )
        },
        {"last": whole.peak},
    )
    for name, part in (("add", adding(program)), ("rest", updating(program))):
        own = unmeasured(part, graph)
        cut = part_of(schedule, own, part.places, budget=whole.least_budget, machine=MACHINE)
        figures = simulate(own, cut, budget=whole.least_budget, machine=MACHINE).figures
        assert cut.initial == schedule.initial
        assert figures.least_budget <= whole.least_budget
        assert figures.time <= whole.time
        terms = Terms(own, whole.least_budget, MACHINE, device=device)
        given = iteration._replace(inputs=()) if name == "rest" else iteration
        steps[name], peaks[name] = PlannedStep(given, part.program, cut, terms), figures.peak
    assert baseline.updates is not None
    sums: dict[str, Tensor] = {}
    for turn, name in enumerate(("add", "add", "last", "add", "rest", "add", "add", "last", "add")):
        torch.manual_seed(turn)
        outcome = steps[name].run(() if name == "rest" else iteration.inputs)
        device.synchronize()
        torch.manual_seed(turn)
        if name == "rest":
            parameters = dict(baseline.module.named_parameters())
            for weight, total in sums.items():
                parameters[weight].grad = total
            if clipping is not None:
                nn.utils.clip_grad_norm_(parameters.values(), clipping.max_norm)
            baseline.updates.optimizer.step()
            baseline.updates.optimizer.zero_grad()
            sums.clear()
            continue
        eager = run_eager(baseline, sums, last=name == "last")
        assert outcome.loss is not None
        assert eager.loss is not None
        assert torch.equal(outcome.loss.cpu(), eager.loss)
        assert (outcome.grad_norm is None) == (eager.grad_norm is None)
        assert outcome.grad_norm is None or torch.equal(outcome.grad_norm.cpu(), not_none(eager.grad_norm))
        del outcome  # the plan may count on the room of the loss
    for step in steps.values():
        step.restore_to_device()
    device.synchronize()
    for name, weight in baseline.module.named_parameters():
        assert torch.equal(iteration.module.get_parameter(name), weight), name
    for name, step in steps.items():
        step.place()
        device.synchronize()
        device.reset_peak()
        step.run(() if name == "rest" else iteration.inputs)
        device.synchronize()
        assert device.peak_bytes() <= peaks[name], name
        step.restore_to_device()
        device.synchronize()
