"""Random schedules on the simulated device: what they give beside eager, what they take beside the plan."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from memplan.graphs.graph import Graph
from memplan.planner.schedule import Schedule
from memplan.planner.simulate import simulate
from memplan.runtime.cycle import Terms
from memplan.runtime.device.simulated import SimulatedDevice
from memplan.runtime.execute import PlannedStep
from memplan.runtime.iteration import Iteration
from memplan.runtime.program import Program
from memplan.runtime.program_graph import Cost, graph_of
from memplan.runtime.trace import trace
from transfers import MACHINE, adamw, assert_equal, everything, seeded, train_eagerly, wandering, with_modes

TURNS = 3
NETS = (
    ("perceptron", adamw),
    ("tied", adamw),
    ("perceptron", None),
    ("in_place", None),
    ("random_numbers", None),
    ("unet", None),
)
"""Names and optimizers. The first are small, and have the most kinds of tensors that move."""


class Case(NamedTuple):
    iteration: Iteration
    program: Program
    graph: Graph
    schedule: Schedule
    budget: int | None


def case(name, optimizer, rng) -> Case:
    """In whole blocks of 512 bytes, in little room or much; runs on the CPU among them."""
    program = _program(name, optimizer)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations), block_bytes=512)
    modes = with_modes(graph, program, rng).operations.modes
    kept = {i: tuple(mode for mode in of if not mode.reads_host) for i, of in modes.items()}
    kept = {i: of for i, of in kept.items() if of}
    graph = replace(graph, operations=replace(graph.operations, modes=kept))
    schedule = wandering(graph, rng)
    figures = simulate(graph, schedule, machine=MACHINE).figures
    budget = rng.choice((None, figures.least_budget, figures.least_budget))
    return Case(seeded(name, optimizer), program, graph, schedule, budget)


def planned_step(case: Case, device: SimulatedDevice) -> PlannedStep:
    return PlannedStep(
        case.iteration, case.program, case.schedule, Terms(case.graph, case.budget, MACHINE, device=device)
    )


def train(case: Case, step: PlannedStep, device: SimulatedDevice, turns: int = TURNS) -> Any:
    """The turns follow each other; only at the end the device is waited for."""
    outcomes = []
    for turn in range(turns):
        torch.manual_seed(turn)
        outcomes.append(step.run(case.iteration.inputs))
    step.recall()
    device.synchronize()
    return outcomes, everything(case.iteration)


def check(name, optimizer, number: int) -> None:
    """Bitwise what eager gives, the peaks as planned. Raises AssertionError, or what the device found."""
    rng = random.Random(number)
    made, device = case(name, optimizer, rng), SimulatedDevice(number)
    step = planned_step(made, device)
    assert_equal(train(made, step, device), eagerly(name, optimizer))
    figures = simulate(made.graph, made.schedule, budget=made.budget, machine=MACHINE).figures
    assert device.pinned.held_peak <= figures.host_peak
    device.reset_peak()
    for _turn in range(TURNS):
        step.run(made.iteration.inputs)
    step.place()
    device.synchronize()
    assert device.peak_bytes() == figures.peak


@cache
def eagerly(name, optimizer) -> Any:
    return train_eagerly(seeded(name, optimizer), TURNS)


@cache
def _program(name, optimizer) -> Program:
    return trace(seeded(name, optimizer))
