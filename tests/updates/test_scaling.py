"""Updates of a scaled loss: GradScaler's bits, in any schedule, on late devices; peaks as planned."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from iterations import seeded
from memplan.devices.measuring.synthetic_inputs import SyntheticInputs
from memplan.graphs.machine import Links, Machine
from memplan.model.clipping import Clipping
from memplan.model.iteration import Iteration, Scaled, Updates
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.eager import run_eager
from memplan.profiling.compare.side_by_side import side_by_side
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.program.graph import Cost, graph_of
from memplan.runtime.run.cycle import Terms
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents
from memplan.tracing.trace import trace
from memplan.updates.scaling import unscale
from memplan.updates.updates import updates_weights
from recomputing import recomputing
from simulated_device.device import SimulatedDevice
from torch import Tensor, nn

AdamW = torch.optim.AdamW


def scaled(name: str, scale: float, norm: float | None = None) -> Iteration:
    iteration = seeded(name)
    clipping = None if norm is None else Clipping(norm)
    updates = Updates(AdamW(iteration.module.parameters(), 1e-2), "in-backward", clipping)
    return iteration._replace(inputs=Scaled(iteration.inputs, torch.tensor(scale)), updates=updates)


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize("name", ["tied", "frozen", "in_place", "half_precision"])
def test_any_schedule_has_the_bits_of_a_loop_with_a_scaler(name: str) -> None:
    rng = random.Random(name)
    iteration = scaled(name, rng.uniform(1, 300), rng.choice((None, 0.1)))
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    comparison = compare(iteration, PlannedStep(iteration, program, recomputing(graph, rng)))
    assert comparison.equal, comparison


@pytest.mark.parametrize("scale", [2.0**7, 2.0**140, 77.7])
def test_a_late_device_waits_for_what_was_found(scale: float) -> None:
    """2 ** 140 is infinite in float32."""
    iteration = scaled("perceptron", scale)
    baseline = iteration._replace(module=copy.deepcopy(iteration.module))
    baseline = baseline._replace(updates=Updates(AdamW(baseline.module.parameters(), 1e-2)))
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    device = SimulatedDevice(seed=1)
    step = PlannedStep(iteration, program, recomputing(graph, random.Random(1)), Terms(graph, device=device))
    before = weights(baseline.module)
    for _ in range(2):
        torch.manual_seed(5)
        outcome = step.run(iteration.inputs)
        torch.manual_seed(5)
        assert outcome.infinite == run_eager(baseline).infinite == (scale > 2.0**127)
    device.synchronize()
    assert all(map(torch.equal, weights(iteration.module), weights(baseline.module)))
    assert outcome.infinite == all(map(torch.equal, before, weights(baseline.module)))


@pytest.mark.parametrize("norm", [None, 0.1])
def test_the_peak_is_as_planned(norm: float | None) -> None:
    iteration = scaled("perceptron", 100.0, norm)
    program = trace(iteration)
    graph = graph_from(program, measure_program(program, residents(program, iteration)))
    schedule = recomputing(graph, random.Random(2))
    measured = side_by_side(iteration, PlannedStep(iteration, program, schedule), repeats=1)
    assert measured.comparison is not None
    assert measured.comparison.equal
    assert abs(measured.planned.peak_bytes - simulate(graph, schedule).figures.peak) <= 2 * 5056


def test_on_an_emulated_device_with_weights_in_host_memory() -> None:
    """Updates on the CPU beside it read what was found there."""
    iteration = scaled("perceptron", 100.0)
    baseline = iteration._replace(module=copy.deepcopy(iteration.module))
    baseline = baseline._replace(updates=Updates(AdamW(baseline.module.parameters(), 1e-2)))
    program = trace(iteration)
    costs = [Cost(1e-3, host_seconds=1e-6 if updates_weights(o) else None) for o in program.operations]
    graph = graph_of(program, costs, block_bytes=512)
    machine = Machine(links=Links(1e9, 1e9))
    budget = simulate(graph, solve("store-all", Problem(graph, 2**40)).schedule).figures.peak * 7 // 10
    schedule = solve("zero-offload", Problem(graph, budget, machine)).schedule
    assert schedule.wheres[schedule.verbs == Verb.COMPUTE].any()
    device = SimulatedDevice(seed=3)
    step = PlannedStep(iteration, program, schedule, Terms(graph, budget, machine, device=device))
    assert isinstance(iteration.inputs, Scaled)
    for scale in (100.0, 2.0**140, 200.0):
        inputs = Scaled(iteration.inputs.inputs, torch.tensor(scale))
        torch.manual_seed(5)
        infinite = step.run(inputs).infinite
        torch.manual_seed(5)
        assert infinite == run_eager(baseline._replace(inputs=inputs)).infinite
    device.synchronize()
    assert device.peak_bytes() <= budget
    step.restore_to_device()
    device.synchronize()
    assert all(map(torch.equal, weights(iteration.module), weights(baseline.module)))


def test_updates_are_measured_where_nothing_is_infinite() -> None:
    """In host memory too: one that is skipped takes no time."""
    iteration = scaled("perceptron", 100.0)
    program = trace(iteration)
    stand_ins = SyntheticInputs(program, residents(program, iteration))
    seen = 0
    for operation in program.operations:
        if updates_weights(operation):
            for call in (stand_ins.call(), *stand_ins.calls_on_host()):
                assert not call.keywords["infinite"]
                seen += 1
        stand_ins.advance()
    assert seen > 2


def numbers(rng: random.Random, dtype: torch.dtype) -> Tensor:
    made = torch.randn(33) * 10.0 ** rng.randint(-40, 30)
    if rng.random() < 0.3:
        made[rng.randrange(33)] = rng.choice((float("inf"), float("nan"), -float("inf")))
    return made.to(dtype).reshape(11, 3).t()


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("seed", range(40))
def test_unscaling_is_that_of_gradscaler(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rng.choice((torch.float32, torch.float64, torch.bfloat16))
    scale = rng.choice((1.0, 2.0 ** rng.randint(-20, 40), rng.uniform(1e-5, 1e9)))
    gradient = numbers(rng, dtype)
    weight = nn.Parameter(torch.zeros_like(gradient))
    weight.grad = gradient.clone()
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(torch.ones(()))
    optimizer = torch.optim.SGD([weight], 1.0)
    scaler.unscale_(optimizer)
    made, infinite = unscale(gradient, torch.tensor(scale))
    assert torch.equal(bits(made), bits(weight.grad))
    assert made.stride() == gradient.stride()
    assert bool(infinite) == any(scaler._found_inf_per_device(optimizer).values())
    if dtype == torch.bfloat16:
        return
    fused = torch.optim.SGD([weight], 1.0, fused=True)
    weight.data, weight.grad = torch.zeros_like(gradient), gradient.clone()
    scaler.step(fused)
    made, infinite = unscale(gradient, torch.tensor(scale), divides=True)
    expected = torch.zeros_like(made) if infinite else -made
    assert torch.equal(weight, expected)
