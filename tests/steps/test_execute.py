"""A schedule, run, gives what eager PyTorch gives, bit by bit, within the memory that the simulator tells.

The oracles are eager PyTorch itself, a naive replay of the program, and the simulator.
"""

import random
from dataclasses import replace

import pytest
import torch
from iterations import ITERATIONS, gpt2, seeded
from memplan.devices.device.cpu import Cpu
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.errors import MismatchError
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Kind
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.sequence import in_default_mode, schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.eager import run_eager
from memplan.program.graph import Cost, graph_of
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from memplan.updates.counts import count_bytes
from not_none import not_none
from program_replay import ProgramReplay
from recomputing import recomputing
from simulated_device.device import SimulatedDevice
from torch import nn

GENERATOR_BYTES = 5056
"""The state of the CPU's generator: PyTorch hands it out as a tensor, if only for a moment."""


def ended(step, device):
    """The step; afterwards what it gives can be read."""

    def run():
        loss = step()
        if device is not None:
            device.synchronize()
        return loss

    return run


def unmeasured(program):
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    validate(graph)
    return graph


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ITERATIONS)
def test_bitwise_equal_to_eager_however_much_is_recomputed(name):
    iteration = seeded(name)
    program = trace(iteration)
    graph = unmeasured(program)
    rng = random.Random(name)
    schedules = [
        baseline_schedule(graph),
        recomputing(graph, rng),
        recomputing(graph, rng, share=0.1, window=30),
    ]
    assert max(map(len, schedules)) > len(schedules[0])
    for schedule in schedules:
        simulate(graph, schedule)
        comparison = compare(iteration, PlannedStep(iteration, program, schedule))
        assert comparison.equal, comparison


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["perceptron", "in_place", "random_numbers", "resnet"])
def test_a_naive_replay_agrees(name):
    iteration = seeded(name)
    program = trace(iteration)
    step = PlannedStep(iteration, program, recomputing(unmeasured(program), random.Random(0)))
    before = torch.get_rng_state()
    buffers = {key: tensor.clone() for key, tensor in iteration.module.named_buffers()}
    outcome = step.run(iteration.inputs)
    for key, tensor in iteration.module.named_buffers():
        tensor.copy_(buffers[key])
    torch.set_rng_state(before)
    replay = ProgramReplay(program, iteration).run()
    assert torch.equal(not_none(outcome.loss), replay.tensors[program.loss])
    assert outcome.gradients
    for key, gradient in outcome.gradients.items():
        assert torch.equal(gradient, replay.tensors[program.gradients[key]]), key


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt2", "unet", "resnet", "transformer"])
def test_the_peak_is_the_simulated_one(name):
    torch.manual_seed(0)
    iteration = gpt2(width=128, batch=4, length=64) if name == "gpt2" else seeded(name)
    program = trace(iteration)
    graph = graph_of(program, ProgramReplay(program, iteration).run().costs())
    resident = int(graph.tensors.bytes[graph.resident].sum())
    rng = random.Random(1)
    for schedule in (baseline_schedule(graph), recomputing(graph, rng), recomputing(graph, rng, window=20)):
        predicted = simulate(graph, schedule).figures.peak - resident
        step = PlannedStep(iteration, program, schedule)
        measured = live_peak(lambda step=step: step.run(iteration.inputs)).peak_bytes
        assert measured <= 1.01 * predicted + GENERATOR_BYTES
        assert measured >= 0.99 * predicted - GENERATOR_BYTES


def test_what_is_left_is_the_results():
    iteration = seeded("in_place")
    program = trace(iteration)
    graph = unmeasured(program)
    step = PlannedStep(iteration, program, recomputing(graph, random.Random(2)))
    left = live_peak(lambda: step.run(iteration.inputs)).left_bytes
    assert left == sum(program.storages[storage].bytes for storage in program.results)


def test_the_generator_goes_on_as_after_eager():
    iteration = seeded("random_numbers")
    program = trace(iteration)
    torch.manual_seed(7)
    run_eager(iteration)
    after_eager = torch.rand(4)
    for schedule in (
        baseline_schedule(unmeasured(program)),
        recomputing(unmeasured(program), random.Random(3)),
    ):
        step = PlannedStep(iteration, program, schedule)
        torch.manual_seed(7)
        step.run(iteration.inputs)
        assert torch.equal(torch.rand(4), after_eager)


@pytest.mark.parametrize("simulated", [False, True])
def test_steps_train_as_eager_does(simulated):
    device = SimulatedDevice() if simulated else None

    def trained(make_step):
        torch.manual_seed(0)
        iteration = gpt2()
        step = make_step(iteration)
        optimizer = torch.optim.AdamW(iteration.module.parameters(), 1e-2)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(step().item())
            optimizer.step()
        return losses, [parameter.detach().clone() for parameter in iteration.module.parameters()]

    def eagerly(iteration):
        def step():
            loss = iteration.module(**iteration.inputs).loss
            loss.backward()
            return loss

        return step

    def by_plan(iteration):
        program = trace(iteration)
        graph = unmeasured(program)
        terms = device and Terms(graph, device=device)
        step = PlannedStep(iteration, program, recomputing(graph, random.Random(4)), terms)
        return ended(lambda: step(**iteration.inputs), device)

    (losses, weights), (planned_losses, planned_weights) = trained(eagerly), trained(by_plan)
    assert losses == planned_losses
    assert losses[0] > losses[-1]
    assert all(torch.equal(one, other) for one, other in zip(weights, planned_weights, strict=True))


def test_gradients_are_added_to_those_there():
    iteration = seeded("perceptron")
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    torch.manual_seed(1)
    step(*iteration.inputs)
    first = [not_none(parameter.grad).clone() for parameter in iteration.module.parameters()]
    torch.manual_seed(1)
    step(*iteration.inputs)
    for parameter, gradient in zip(iteration.module.parameters(), first, strict=True):
        assert torch.equal(not_none(parameter.grad), 2 * gradient)


def test_gradients_do_not_share_memory_unseen():
    """Scaling one in place, as gradient clipping does, must leave the others alone."""
    iteration = seeded("shared_gradients")
    program = trace(iteration)
    outcome = PlannedStep(iteration, program, baseline_schedule(unmeasured(program))).run(iteration.inputs)
    copies = {name: gradient.clone() for name, gradient in outcome.gradients.items()}
    for gradient in outcome.gradients.values():
        gradient.mul_(0.5)
    for name, gradient in outcome.gradients.items():
        assert torch.equal(gradient, 0.5 * copies[name])
        assert gradient.stride() == dict(iteration.module.named_parameters())[name].stride()


def test_comparing_leaves_no_trace():
    iteration = seeded("in_place")
    program = trace(iteration)
    module = iteration.module
    module.one.grad = torch.ones(8)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    objects = dict(module.named_buffers())
    state = torch.get_rng_state()
    assert compare(iteration, PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))).equal
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(objects[name] is tensor for name, tensor in module.named_buffers())
    assert torch.equal(module.one.grad, torch.ones(8))
    assert module.other.grad is None


def test_a_difference_is_named():
    """A weight that changes behind the plan's back: here the plan is made for another number."""
    iteration = seeded("frozen")
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    assert isinstance(iteration.inputs, dict)
    inputs = {**iteration.inputs, "scale": 3.0}
    other = Iteration(iteration.module, inputs)
    step._expected._others["scale"] = (3.0, None)
    comparison = compare(other, step)
    assert not comparison.equal
    assert comparison.first == "loss 1"
    assert comparison.largest > 0
    assert "loss 1 differs from eager" in str(comparison)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": torch.zeros(5, 8)},
            r"input x is torch.float32 \[5, 8\].*the plan is for torch.float32 \[4, 8\]",
        ),
        ({"x": torch.zeros(4, 8).double()}, "input x is torch.float64"),
        ({"x": torch.zeros(8, 4).t()}, r"strides \[1, 4\]"),
        ({"scale": 4.0}, "input scale is 4.0; the plan is for 2.0"),
        ({"other": torch.zeros(1)}, r"the batch can't be given to .*forward.* keyword argument 'other'"),
    ],
)
def test_inputs_of_another_form_are_refused(change, message):
    iteration = seeded("frozen")
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    assert isinstance(iteration.inputs, dict)
    with pytest.raises(MismatchError, match=message):
        step(**{**iteration.inputs, **change})
    with pytest.raises(MismatchError, match=r"the batch can't be given to .* argument: 'mask'"):
        step(**{name: value for name, value in iteration.inputs.items() if name != "mask"})


def test_modules_that_replace_their_buffers_are_followed():
    iteration = seeded("in_place")
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    iteration.module.average = torch.full((8,), 5.0)
    assert compare(iteration, step).equal
    step.run(iteration.inputs)
    assert (iteration.module.average > 4).all()


def test_kinds_and_results_of_the_graph():
    graph = unmeasured(trace(seeded("in_place")))
    names = [graph.tensors.name[tensor] for tensor in graph.results]
    assert names[0] == "loss"
    assert all(name.endswith(".grad") for name in names[1:])
    assert {graph.tensor(tensor).kind for tensor in graph.results[1:]} == {Kind.PARAMETER_GRADIENT}


def test_the_code():
    """Two linear layers around a tanh, whose result is dropped after forward and made again for backward.

    x ── 0/mm ── 1/tanh ── 2/mm ── sum ── …backward: 2/backward/mm reads 1/tanh again
    """
    module = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False))
    iteration = Iteration(module, (torch.ones(4, 2),), torch.sum)
    program = trace(iteration)
    graph = unmeasured(program)
    order = list(range(len(graph.operations)))
    tanh, first_use = graph.operation_index["1/tanh"], graph.operation_index["2/backward/mm"]
    schedule = schedule_of(graph, in_default_mode([*order[:first_use], tanh, *order[first_use:]]))
    step = PlannedStep(iteration, program, schedule)
    lines = [line.strip() for line in step.source.splitlines()]

    value = program.operations[tanh].call.outputs[0]
    about = [
        line.split(" ")[0]
        for line in lines
        if line.startswith((f"v{value} = ", "del ")) and f"v{value}" in line
    ]
    assert about == [f"v{value}", "del", f"v{value}", "del"]
    assert lines[:2] == ["def step(residents, settings):", "v0, v1, v2, = residents"]
    assert lines[-1].startswith("return v")
    assert not any(name in step.source for name in ("weight", "tanh", "inputs"))
    assert compare(iteration, step).equal


def test_results_come_to_the_device_but_gradients_that_the_plan_left_on_the_host():
    """Where a schedule has left them is not where a loop on a GPU reads them."""
    iteration = ITERATIONS["perceptron"]()
    program = trace(iteration)
    graph = unmeasured(program)
    step = PlannedStep(
        iteration, program, schedule_of(graph, in_default_mode(range(len(program.operations))))
    )
    step.program = replace(program, device=torch.device("meta"))
    results = [torch.ones(()), *(torch.ones(3) for _ in program.gradients)]
    outcome = step._outcome(results)
    assert not_none(outcome.loss).device.type == "meta"
    assert {gradient.device.type for gradient in outcome.gradients.values()} == {"cpu"}


@pytest.mark.parametrize(("options", "counts"), [({"fused": True}, 4), ({}, 0)])
def test_step_counts_of_fused_kernels_on_a_device_are_bytes_outside_of_the_plan(options, counts):
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3, **options)
    assert count_bytes(optimizer, SimulatedDevice()) == 512 * counts
    assert count_bytes(optimizer, Cpu(torch.device("cpu"))) == 0
