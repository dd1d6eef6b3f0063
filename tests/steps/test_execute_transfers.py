"""Schedules with transfers and modes, run: bit by bit what eager gives, in exactly the memory planned.

The oracles are eager PyTorch over several iterations, and the simulator. Queues are made late at random: what
a step does not wait for is then seen.
"""

import gc
import random
import time
import weakref
from dataclasses import replace

import pytest
import torch
from memplan.devices.storage import blocks
from memplan.devices.storage.offloaded import Offloaded
from memplan.graphs.graph import Kind, Mode
from memplan.graphs.machine import Memory
from memplan.model.iteration import Iteration, on_device
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.schedule import Schedule, compute, delete, offload, prefetch
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.peaks import peaks
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.program.graph import graph_of
from memplan.runtime.run import queues
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents, trace_real_layouts
from memplan.tracing.trace import trace
from not_none import not_none
from program_replay import ProgramReplay
from simulated_device.device import SimulatedDevice
from torch import nn
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

TURNS = 4
HOST, DISK = Memory.HOST, Memory.DISK


@pytest.fixture
def late(monkeypatch):
    """Some jobs start up to some milliseconds late."""
    rng = random.Random(0)
    punctual = queues.Job.run

    def run(job):
        work = job.work

        def late_work(*arguments):
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.003)
            work(*arguments)

        job.work = late_work
        punctual(job)

    monkeypatch.setattr(queues.Job, "run", run)


def measured(program, iteration):
    """The graph with the true workspaces."""
    return graph_of(program, ProgramReplay(program, iteration).run().costs())


def some_budget(graph, schedule, rng, machine=MACHINE):
    """None, or from the least that the schedule can have."""
    figures = simulate(graph, schedule, machine=machine).figures
    return rng.choice((None, figures.least_budget, (figures.least_budget + figures.peak) // 2))


# ── results ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "optimizer", "count"),
    [
        ("perceptron", None, 8),
        ("perceptron", adamw, 8),
        ("perceptron", clipped, 8),
        ("tied", adamw, 12),
        ("in_place", None, 5),
        ("random_numbers", None, 3),
        ("unet", None, 3),
    ],
)
def test_random_schedules_give_what_eager_gives(name, optimizer, count, late):
    """With all kinds of transfers, recomputation, runs on the CPU, reads of host memory, and little room."""
    eager = train_eagerly(seeded(name, optimizer), TURNS)
    moved = 0
    program = trace(seeded(name, optimizer))
    for number in range(count):
        rng = random.Random(number)
        iteration = seeded(name, optimizer)
        graph = with_modes(unmeasured(program), program, rng)
        schedule = wandering(graph, rng)
        budget = some_budget(graph, schedule, rng)
        figures = simulate(graph, schedule, budget=budget, machine=MACHINE).figures
        machine = replace(MACHINE, host_capacity=rng.choice((None, figures.host_peak)))
        step = PlannedStep(iteration, program, schedule, Terms(graph, budget, machine))
        assert_equal(train_by_plan(iteration, step, TURNS), eager)
        if step.cycle is not None:
            moved += 1
            assert step.cycle.host.count.peak <= figures.host_peak
            assert step.cycle.disk is None or step.cycle.disk.count.peak == figures.disk_peak
    assert moved > count / 2


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_offload_intervals_at_random(name):
    optimizer = adamw if name == "gpt2" else None
    eager = train_eagerly(seeded(name, optimizer), TURNS)
    program = trace(seeded(name, optimizer))
    for number in range(2):
        rng = random.Random(number)
        iteration = seeded(name, optimizer)
        graph = unmeasured(program)
        schedule = absent(graph, in_order(graph), rng)
        step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
        assert_equal(train_by_plan(iteration, step, TURNS), eager)


@pytest.mark.scripts
def test_updates_on_the_cpu():
    """All weights and states at home on the host; the gradients go there, and the weights come back."""
    eager = train_eagerly(seeded("gpt2", adamw), TURNS)
    iteration = seeded("gpt2", adamw)
    program = trace(iteration)
    graph = unmeasured(program)
    updates = [i for i, operation in enumerate(program.operations) if operation.name.endswith("/update")]
    graph = replace(
        graph,
        operations=replace(
            graph.operations, modes={i: (Mode("host", 1.0, 0, (), on_host=True),) for i in updates}
        ),
    )
    runs = [(index, int(index in updates)) for index in range(len(program.operations))]
    schedule = absent(graph, runs, random.Random(0), share=0.2, kinds=(Kind.PARAMETER,), memories=(HOST,))
    states = {x for x, storage in enumerate(program.storages) if storage.kind == Kind.OPTIMIZER_STATE}
    assert states <= schedule.initial.host
    step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
    assert_equal(train_by_plan(iteration, step, TURNS), eager)
    figures = simulate(graph, schedule, machine=MACHINE).figures
    assert not_none(step.cycle).host.count.peak == figures.host_peak


def test_compare_and_recall():
    """Between iterations the module's own tensors are away where they are moved; afterwards all is back."""
    iteration = seeded("perceptron")
    program = trace(iteration)
    graph = unmeasured(program)
    schedule = absent(graph, in_order(graph), random.Random(1), kinds=(Kind.PARAMETER,), share=0.5)
    step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
    before = {name: tensor.clone() for name, tensor in iteration.module.state_dict().items()}
    objects = dict(iteration.module.named_parameters())
    assert compare(iteration, step).equal
    step.run(iteration.inputs)
    storages = {program.values[value].storage for value in program.parameters.values()}
    moved = storages & not_none(step.cycle).moved
    assert sum(isinstance(parameter, Offloaded) for parameter in objects.values()) == len(moved) > 0
    step.restore_to_device()
    step.restore_to_device()
    for name, tensor in iteration.module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(objects[name] is parameter for name, parameter in iteration.module.named_parameters())
    assert compare(iteration, step).equal


@pytest.mark.parametrize("simulated", [False, True])
def test_steps_train_with_an_optimizer_of_ones_own(simulated):
    device = SimulatedDevice() if simulated else None

    def trained(make_step):
        iteration = seeded("perceptron")
        step, optimizer = make_step(iteration), adamw(iteration.module.parameters())
        for turn in range(TURNS):
            torch.manual_seed(turn)
            optimizer.zero_grad()
            step()
            if device is not None:
                device.synchronize()
            optimizer.step()
        return [parameter.detach().clone() for parameter in iteration.module.parameters()]

    def eagerly(iteration):
        return lambda: iteration.loss_fn(iteration.module(*iteration.inputs)).backward()

    def by_plan(iteration):
        program = trace(iteration)
        graph = unmeasured(program)
        schedule = absent(graph, in_order(graph), random.Random(2))
        step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE, device=device))
        return lambda: step(*iteration.inputs)

    for one, other in zip(trained(eagerly), trained(by_plan), strict=True):
        assert torch.equal(one, other)


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["unet", "resnet"])
def test_the_peaks_are_the_planned_ones_to_the_byte(name):
    program = trace(seeded(name))
    graph = measured(program, seeded(name))
    for number in range(3):
        rng = random.Random(number)
        iteration = seeded(name)
        make = wandering if number % 2 else lambda graph, rng: absent(graph, in_order(graph), rng)
        schedule = make(graph, rng)
        budget = some_budget(graph, schedule, rng)
        figures = simulate(graph, schedule, budget=budget, machine=MACHINE).figures
        step = PlannedStep(iteration, program, schedule, Terms(graph, budget, MACHINE))
        assert peaks(step, iteration.inputs)[:3] == (figures.peak, figures.host_peak, figures.disk_peak)


@pytest.mark.scripts
def test_nothing_is_left_when_the_step_is_gone():
    iteration = seeded("perceptron")
    program = trace(iteration)
    graph = unmeasured(program)
    schedule = absent(graph, in_order(graph), random.Random(2), memories=(DISK,))
    step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
    train_by_plan(iteration, step, 2)
    host, disk = not_none(step.cycle).host, not_none(not_none(step.cycle).disk)
    assert disk.count.peak > 0
    file = weakref.ref(disk._file)
    assert disk.count.bytes == 0
    del step, disk
    gc.collect()
    assert host.count.bytes == 0
    assert file() is None


# ── the code ────────────────────────────────────────────────────────────────────────────────────────


def linear_pair():
    """x ── 0/mm ── 1/tanh ── 2/mm ── sum, and backward."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    return Iteration(module, (torch.ones(4, 2),), torch.sum)


def swapping(graph):
    """0/mm's result leaves behind tanh, whose result comes back into its room: of the same size."""
    index = graph.operation_index
    mm, tanh = (graph.tensor_index[name] for name in ("0/mm", "1/tanh"))
    steps = []
    for step in baseline_schedule(graph):
        if step == delete(mm):
            continue
        steps.append(step)
        if step == compute(index["2/mm"]):
            steps += [offload(tanh), delete(tanh), offload(mm), delete(mm), prefetch(tanh)]
            steps += [prefetch(mm), delete(mm), delete(mm, HOST), delete(tanh, HOST)]
    return Schedule.of(steps)


def test_the_code():
    """Offload, pending delete, prefetch into other memory, wait; in the order of the list."""
    iteration = linear_pair()
    program = trace(iteration)
    graph = unmeasured(program)
    tanh = graph.tensor_index["1/tanh"]
    steps = []
    for step in baseline_schedule(graph):
        steps.append(step)
        if step == compute(graph.operation_index["2/mm"]):
            steps += [offload(tanh), delete(tanh), prefetch(tanh), delete(tanh, HOST)]
    schedule = Schedule.of(steps)
    step = PlannedStep(iteration, program, schedule)
    made = program.operations[graph.operation_index["1/tanh"]].call.outputs[0]
    lines = [line.strip() for line in step.source.splitlines()]
    start = lines.index(f"h{tanh} = host(raw(v{made}).nbytes).open()")
    at = steps.index(offload(tanh))
    assert lines[start + 1 : start + 8] == [
        f"now[{at}] = add(D2H, offload, (v{made}, h{tanh}), (), ())",
        f"leaving[{at + 1}] = (v{made}, )",
        f"del v{made}",
        f"d{tanh} = room(h{tanh}.size)",
        f"now[{at + 2}] = add(H2D, prefetch, (h{tanh}, d{tanh}), (now[{at}], ), ())",
        f"leaving[{at + 3}] = (h{tanh}, )",
        f"del h{tanh}",
    ]
    assert f"wait(now[{at + 2}])" in lines[start + 8 :]
    assert compare(iteration, step).equal


def test_a_prefetch_takes_over_the_memory_that_it_waits_for():
    """The computing thread then waits for neither."""
    iteration = linear_pair()
    program = trace(iteration)
    graph = measured(program, linear_pair())
    schedule = swapping(graph)
    budget = simulate(graph, schedule, machine=MACHINE).figures.least_budget
    step = PlannedStep(iteration, program, schedule, Terms(graph, budget, MACHINE))
    assert any("= raw(leaving.pop(" in line for line in step.source.splitlines())
    assert_equal(train_by_plan(iteration, step, TURNS), train_eagerly(linear_pair(), TURNS))
    assert peaks(step, iteration.inputs).device == budget


@pytest.fixture
def whole_blocks(monkeypatch):
    """Sizes as CUDA's allocator counts them, above those of the memory itself."""
    true = blocks.size_bytes
    monkeypatch.setattr(blocks, "size_bytes", lambda *of: -(-true(*of) // 512) * 512)


@pytest.mark.scripts
def test_a_prefetch_takes_over_memory_only_where_it_fits_to_the_byte(whole_blocks, late):
    """The sizes that are planned with are equal for many a tensor, the memory is not."""
    eager = train_eagerly(seeded("perceptron", adamw), 2)
    program = trace(seeded("perceptron", adamw))
    for number in range(20):
        rng = random.Random(number)
        iteration = seeded("perceptron", adamw)
        graph = with_modes(unmeasured(program), program, rng)
        schedule = wandering(graph, rng)
        budget = simulate(graph, schedule, machine=MACHINE).figures.least_budget
        step = PlannedStep(iteration, program, schedule, Terms(graph, budget, MACHINE))
        assert_equal(train_by_plan(iteration, step, 2), eager)


# ── CUDA ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["perceptron", "gpt2"])
def test_on_cuda(name):
    for number in range(3):
        rng = random.Random(number)
        iteration = on_device(seeded(name), "cuda")
        program = trace_real_layouts(iteration)
        graph = graph_from(program, measure_program(program, residents(program, iteration)), block_bytes=512)
        schedule = absent(graph, in_order(graph), rng)
        budget = some_budget(graph, schedule, rng)
        step = PlannedStep(iteration, program, schedule, Terms(graph, budget, MACHINE))
        assert compare(iteration, step).equal
