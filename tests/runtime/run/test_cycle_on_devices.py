"""Random valid schedules run: bit by bit what eager gives, on each device."""

import gc
import random

import pytest
import torch
from iterations import ITERATIONS
from memplan.devices.calls.randomness import generators_kept
from memplan.model.iteration import on_device
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.peaks import peaks
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents, trace_real_layouts
from not_none import not_none
from transfers import (
    MACHINE,
    absent,
    adamw,
    assert_equal,
    clipped,
    in_order,
    seeded,
    train_by_plan,
    train_eagerly,
    unmeasured,
    wandering,
    with_modes,
)

ONLY_CPU = {"branching"}  # a tensor that is neither parameter nor buffer stays there
NAMES = sorted(ITERATIONS.keys() - ONLY_CPU)


def placed(name, optimizer, device):
    return on_device(seeded(name, optimizer), device)


def measured(program, iteration):
    return graph_from(program, measure_program(program, residents(program, iteration)), block_bytes=512)


@pytest.fixture(autouse=True)
def traceable(request, monkeypatch):
    """No trace follows cuDNN's recurrent layers, and says so."""
    if "lstm" in request.node.name:
        monkeypatch.setattr(torch.backends.cudnn, "enabled", False)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_leave_for_host_and_disk(name, device):
    eager = train_eagerly(placed(name, None, device), 2)
    iteration = placed(name, None, device)
    program = trace_real_layouts(iteration)
    # A device that counts its memory counts what kernels take besides their results.
    graph = unmeasured(program) if device == "cpu" else measured(program, iteration)
    schedule = absent(graph, in_order(graph), random.Random(0))
    step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
    assert_equal(train_by_plan(iteration, step, 2), eager)


@pytest.mark.parametrize("optimizer", [adamw, clipped], ids=["adamw", "clipped"])
@pytest.mark.parametrize("name", ["perceptron", "tied", "half_precision"])
def test_recomputation_and_updates_anywhere(name, optimizer, device):
    """Runs of the CPU are left out on CUDA: its arithmetic is the CPU's own."""
    eager = train_eagerly(placed(name, optimizer, device), 3)
    program = trace_real_layouts(placed(name, optimizer, device))
    for number in range(3):
        rng = random.Random(number)
        iteration = placed(name, optimizer, device)
        on_cpu = device == "cpu"
        graph = with_modes(unmeasured(program), program, rng) if on_cpu else measured(program, iteration)
        schedule = wandering(graph, rng)
        budget = simulate(graph, schedule, machine=MACHINE).figures.least_budget
        step = PlannedStep(iteration, program, schedule, Terms(graph, budget, MACHINE))
        assert_equal(train_by_plan(iteration, step, 3), eager)


@pytest.mark.parametrize("name", ["unet", "resnet", "gpt2", "perceptron"])
def test_peaks_are_the_planned_ones_to_the_byte(name, device):
    gc.collect()  # what a failed test has left would count
    iteration = placed(name, None, device)
    program = trace_real_layouts(iteration)
    graph = measured(program, iteration)
    for number in range(2):
        rng = random.Random(number)
        schedule = absent(graph, in_order(graph), rng)
        figures = simulate(graph, schedule, machine=MACHINE).figures
        step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
        found = peaks(step, iteration.inputs)
        step.restore_to_device()
        others = found.constant + found.extra
        if device == "cuda":
            assert found.device - others == figures.peak
        assert found.device <= figures.peak + others


def test_draws_from_the_other_generator_are_repeated(device):
    """A model on any device may draw on the CPU, as many a diffusion loop does."""

    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

        def forward(self, x):
            noise = torch.randn(x.shape).to(x.device)
            return self.last(self.first(x + noise).tanh()).square().mean()

    from memplan.model.iteration import Iteration
    from memplan.planner.schedule.sequence import in_default_mode, schedule_of

    torch.manual_seed(0)
    module, x = Noisy().to(device), torch.randn(32, 64).to(device)
    iteration = Iteration(module, (x,))
    program = trace_real_layouts(iteration)
    graph = unmeasured(program)
    count = len(program.operations)
    loss = next(i for i, each in enumerate(program.operations) if each.phase.name == "LOSS")
    noise = [i for i, each in enumerate(program.operations) if each.random or "noise" in each.name]
    recomputed = [*range(noise[0], noise[0] + (2 if device == "cpu" else 3))]
    order = [*range(loss + 1), *recomputed, *range(loss + 1, count)]
    torch.manual_seed(1)
    module(x).backward()
    eager = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    step = PlannedStep(iteration, program, schedule_of(graph, in_default_mode(order)), Terms(graph))
    with generators_kept([torch.device(device)]):
        torch.manual_seed(1)
        step(x)
    for expected, parameter in zip(eager, module.parameters(), strict=True):
        assert torch.equal(not_none(expected), not_none(parameter.grad))
