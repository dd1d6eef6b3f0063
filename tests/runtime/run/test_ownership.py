"""One schedule in the place of another: weights go over tensor by tensor, within the bytes of both."""

from __future__ import annotations

import gc
import random
import weakref
from unittest.mock import patch

import pytest
import torch
from hostile import NETS, Lateness, case, eagerly, planned_step
from memplan.devices.storage.host_buffers import HostBuffer
from memplan.devices.storage.offloaded import hold_of
from memplan.graphs.errors import MismatchError
from memplan.graphs.machine import Memory
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.schedule import Schedule, delete, offload, prefetch
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.peaks import peaks
from memplan.runtime.run import over_plan
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from recomputing import recomputing
from torch import nn
from transfers import MACHINE, adamw, assert_equal, everything, seeded, unmeasured, wandering


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(9))
def test_a_step_takes_over_from_another(number: int) -> None:
    """Random schedules on the hostile device; each third goes over to one without transfers, or from it. What
    the first one held is gone with it, without the garbage collector."""
    net, optimizer = NETS[number % 3]
    first = case(net, optimizer, random.Random(f"{number} first"))
    second = case(net, optimizer, random.Random(f"{number} second"))._replace(iteration=first.iteration)
    if number % 3 == 1:
        baseline = recomputing(second.graph, random.Random(number))
        second = second._replace(schedule=baseline, budget=None)
        first, second = (first, second) if number % 2 else (second, first)
    peak = simulate(second.graph, second.schedule, budget=second.budget, machine=second.machine).figures.peak
    late = Lateness(number)
    device, outcomes = late.device(), []

    def turn(step, number):
        torch.manual_seed(number)
        outcome = step.run(first.iteration.inputs)
        device.synchronize()
        outcomes.append(outcome._replace(loss=outcome.loss.clone(), gradients={}))

    gc.disable()
    try:
        with late.jobs(), patch.object(over_plan, "WATCHED_ITERATIONS", 0):
            before = planned_step(first, device)
            turn(before, 0)
            turn(before, 1)
            there = device.allocated_bytes()
            device.reset_peak()
            after = planned_step(second, device)
            after.place()
            device.synchronize()
            assert device.peak_bytes() <= max(there, device.allocated_bytes())
            gone = weakref.ref(before)
            del before
            assert gone() is None
            device.allocated_bytes()
            device.reset_peak()
            turn(after, 2)
            assert device.peak_bytes() <= max(there, peak)
            after.restore_to_device()
            device.synchronize()
    finally:
        gc.enable()
    assert_equal((outcomes, everything(first.iteration)), eagerly(net, optimizer, 3))


@pytest.mark.parametrize("moves", [False, True])
def test_what_another_step_has_counts_once(moves: bool) -> None:
    """The next one leaves on the device what the first one moves, all or a part of it: its peaks are those it
    has alone."""
    iteration = seeded("perceptron", adamw)
    program = trace(iteration)
    graph = unmeasured(program)
    first = wandering(graph, random.Random(1))
    after = wandering(graph, random.Random(2)) if moves else baseline_schedule(graph)

    def step_by(schedule: Schedule, iteration: Iteration = iteration) -> PlannedStep:
        return PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))

    one, other, alone = step_by(first), step_by(after), step_by(after, seeded("perceptron", adamw))
    one.run(iteration.inputs)
    alone.run(iteration.inputs)
    assert one.cycle is not None
    assert one.cycle.moved - (other.cycle.moved if other.cycle else frozenset())
    assert peaks(other, iteration.inputs) == peaks(alone, iteration.inputs)


def test_copies_where_the_next_one_starts_with_them_go_over_as_they_are() -> None:
    iteration = seeded("perceptron", adamw)
    program = trace(iteration)
    graph = unmeasured(program)
    schedule = wandering(graph, random.Random(1))
    one, other = (PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE)) for _ in range(2))
    one.run(iteration.inputs)

    def on_host() -> list[HostBuffer]:
        holds = map(hold_of, iteration.module.parameters())
        return [copy for hold in holds if hold for copy in hold.copies() if isinstance(copy, HostBuffer)]

    before = on_host()
    assert before
    other.place()
    assert [*map(id, on_host())] == [*map(id, before)]


class OneMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.free = (
            nn.Parameter(torch.ones(4, 8), requires_grad=False),
            nn.Parameter(torch.ones(4)),
        )
        self.tall = nn.Parameter(self.wide.data.t(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.wide @ self.tall * self.free).sum()


def test_weights_of_one_memory_that_no_longer_share_it_are_named() -> None:
    iteration = Iteration(OneMemory(), (torch.ones(2, 4),))
    program = trace(iteration)
    graph = unmeasured(program)
    x = program.values[program.parameters["wide"]].storage
    assert x == program.values[program.parameters["tall"]].storage
    steps = [offload(x), delete(x), prefetch(x), delete(x, Memory.HOST), *baseline_schedule(graph)]
    step = PlannedStep(iteration, program, Schedule.of(steps), Terms(graph, None, MACHINE))
    step.run(iteration.inputs)
    iteration.module.tall.data = torch.ones(4, 8).t()
    with pytest.raises(MismatchError, match=r"^wide, tall lie in memories of their own"):
        step.run(iteration.inputs)
