"""Schedules with transfers for traced iterations, at random and by hand, and runs of them beside eager's."""

from __future__ import annotations

from dataclasses import replace

import torch
from iterations import ITERATIONS
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Kind, Mode
from memplan.graphs.machine import Links, Machine, Memory
from memplan.graphs.transformations.updates import When
from memplan.model.clipping import Clipping
from memplan.model.iteration import Updates
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.residency.prefetch_placement import build_schedule
from memplan.planner.residency.residency import Residency
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.eager import run_eager
from memplan.program.graph import Cost, graph_of
from random_schedules import random_initial, random_schedule

MACHINE = Machine(links=Links(1e9, 1e9, 1e9, 1e9))


def seeded(name, optimizer=None, when: When = "in-backward", **options):
    """An iteration, the same each time; optimizer: of its weights, from their module's parameters."""
    torch.manual_seed(0)
    iteration = ITERATIONS[name](**options)
    if optimizer is None:
        return iteration
    clipping = Clipping(0.05) if optimizer is clipped else None
    return iteration._replace(updates=Updates(optimizer(iteration.module.parameters()), when, clipping))


def adamw(parameters):
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], 1e-2, foreach=False)


def clipped(parameters):
    """The same, with gradients clipped by their norm."""
    return adamw(parameters)


def unmeasured(program):
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    validate(graph)
    return graph


def holds(graph, schedule, budget=None, machine=MACHINE):
    try:
        simulate(graph, schedule, budget=budget, machine=machine)
    except InvalidScheduleError:
        return False
    return True


def in_order(graph):
    """All runs of a plain iteration."""
    return in_default_mode(range(len(graph.operations)))


def wandering(graph, rng, machine=MACHINE, most=1500):
    """A valid schedule of random legal steps, with all kinds of transfers, recomputation and modes."""
    while True:
        initial = random_initial(rng, graph, machine)
        schedule = random_schedule(rng, graph, machine, initial, most)
        if holds(graph, schedule, machine=machine):
            return schedule


def absent(graph, runs, rng, share=0.4, kinds=tuple(Kind), memories=(Memory.HOST, Memory.DISK)):
    """After some of its uses a tensor is away until the next; it leaves and comes back at random places."""
    offloaded, leave, back = {}, {}, {}
    share = share if rng.random() < 0.7 else 0.05
    for position, (operation, _mode) in enumerate(runs):
        for x in graph.read_lists[operation]:
            if graph.tensor(x).kind in kinds and graph.tensor(x).kind != Kind.INPUT and rng.random() < share:
                offloaded[x, position] = rng.choice(memories)
                leave[x, position] = position + 1 + rng.randrange(3)
                back[x, position] = max(0, position - rng.randrange(6))
    down, up = {"offload_slots": leave}, {"prefetch_slots": back}
    for chosen in ({**down, **up}, up, down, {}):
        try:
            schedule = build_schedule(graph, Residency(runs, offloaded, **chosen))
            simulate(graph, schedule, machine=MACHINE)
        except InvalidScheduleError:
            continue
        return schedule
    return absent(graph, runs, rng, share / 2, kinds, memories)


def train_eagerly(iteration, turns):
    """Per turn loss and gradients, and at the end all tensors."""
    outcomes = []
    for turn in range(turns):
        torch.manual_seed(turn)
        outcomes.append(run_eager(iteration))
    return outcomes, everything(iteration)


def train_by_plan(iteration, step, turns):
    outcomes = []
    for turn in range(turns):
        torch.manual_seed(turn)
        outcomes.append(step.run(iteration.inputs))
    step.restore_to_device()
    return outcomes, everything(iteration)


def everything(iteration):
    """Weights, buffers and states by name."""
    named = {name: tensor.detach().clone() for name, tensor in iteration.module.state_dict().items()}
    if iteration.updates is not None:
        for index, row in iteration.updates.optimizer.state_dict()["state"].items():
            named |= {f"{index}.{name}": tensor.clone() for name, tensor in row.items() if tensor is not None}
    return named


def assert_equal(found, expected):
    (outcomes, tensors), (eager_outcomes, eager_tensors) = found, expected
    for turn, (outcome, eager) in enumerate(zip(outcomes, eager_outcomes, strict=True)):
        assert torch.equal(outcome.loss, eager.loss), f"loss, turn {turn}"
        assert (outcome.grad_norm is None) == (eager.grad_norm is None)
        same = outcome.grad_norm is None or torch.equal(outcome.grad_norm, eager.grad_norm)
        assert same, f"norm, turn {turn}"
        for name, gradient in outcome.gradients.items():
            assert torch.equal(gradient, eager.gradients[name]), f"{name}, turn {turn}"
    assert tensors.keys() == eager_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, eager_tensors[name]), name


def with_modes(graph, program, rng, share=0.5):
    """The graph with modes: `host` for what draws no random numbers, `dha`, and runs that make less."""
    modes = {}
    for index, operation in enumerate(program.operations):
        found = []
        if not operation.random and rng.random() < share:
            workspace = rng.choice((0, 64))
            found.append(Mode("host", 2.0, workspace, operation.writes, on_host=True))
        if operation.reads and rng.random() < share:
            read = tuple(rng.sample(operation.reads, rng.randint(1, len(operation.reads))))
            found.append(Mode("dha", 2.0, 0, operation.writes, reads_host=read))
        if operation.writes and rng.random() < share:
            found.append(Mode("less", 1.0, 0, tuple(x for x in operation.writes if rng.random() < 0.7)))
        if found:
            modes[index] = tuple(found)
    return replace(graph, operations=replace(graph.operations, modes=modes))


def replace_modes(graph, modes):
    """The graph with these execution modes of operations, by index."""
    return replace(graph, operations=replace(graph.operations, modes=modes))
