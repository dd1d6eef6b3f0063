"""What a device needs for a call, and the thread to launch it: measured apart, planned as two queues."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep

import pytest
import torch
from iterations import mean_square
from memplan.devices.device import device as devices
from memplan.devices.measuring import measure as measuring
from memplan.devices.measuring.measure import Measurement, measure
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.fusion import choice
from memplan.profiling.fusion.pair import Pair
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.program.graph import Cost, graph_of
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from simulated_device.device import SimulatedDevice
from simulated_device.threads import Delays
from torch import nn

MS = 1e-3


def simulated(launching: float) -> SimulatedDevice:
    return SimulatedDevice(delays=lambda seed: Delays(seed, 0.0), launching=launching)


def asleep(device: SimulatedDevice, seconds: float) -> Callable[[], object]:
    """The device does, the thread that calls goes on."""
    return lambda: device.launch(lambda: sleep(seconds))


def test_a_short_operation_is_measured_without_its_launch() -> None:
    """Between two stamps of a device that waits for the thread there are 5 ms; the operation takes 1 ms."""
    device = simulated(5 * MS)
    found = device.timed([asleep(device, 1 * MS)] * 8)
    assert 1 * MS <= found.seconds < 4 * MS
    assert 5 * MS <= found.launch < 20 * MS


def test_a_long_operation_too() -> None:
    device = simulated(1 * MS)
    found = device.timed([asleep(device, 20 * MS)] * 3)
    assert 20 * MS <= found.seconds < 40 * MS
    assert 1 * MS <= found.launch < 10 * MS


def test_a_call_that_waits_for_the_device_counts_with_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the device is kept busy before."""
    monkeypatch.setattr(devices, "MOST_FILLS", 4)
    device = simulated(1 * MS)

    def call() -> None:
        asleep(device, 1 * MS)()
        device.synchronize()

    found = device.timed([call] * 4)
    assert found.seconds >= 1.5 * MS  # the first is launched while the device is busy
    assert found.launch == 0.0


def test_calls_are_timed_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device with streams all copies of a call together, and the launch is told."""
    device = simulated(2 * MS)
    monkeypatch.setattr(measuring, "device_of", lambda _name: device)
    monkeypatch.setattr(measuring, "first_run", lambda _call, _device: (512, (512,)))
    found = measure([asleep(device, 1 * MS)] * 4)
    assert 1 * MS <= found.seconds < 3 * MS
    assert 2 * MS <= found.launch < 10 * MS
    assert found.result_bytes == (512,)


def layers(count: int) -> Iteration:
    torch.manual_seed(0)
    return Iteration(
        nn.Sequential(nn.Linear(4, 4), *(nn.Tanh() for _ in range(count))), (torch.randn(4, 4),), mean_square
    )


def test_the_graph_has_what_was_measured() -> None:
    program = trace(layers(3))
    count = len(program.operations)
    graph = graph_from(program, [Measurement(1 * MS, 0.0, 0, launch=k * MS) for k in range(count)])
    assert [graph.launch(k) for k in range(count)] == [k * MS for k in range(count)]
    here = graph_from(program, measure_program(program, {}))
    assert not here.operations.launch.any()


def test_an_update_on_the_host_is_launched_as_well() -> None:
    program = trace(layers(1))
    graph = graph_of(program, [Cost(1.0, 0, 2.0, 0, 3 * MS)] * len(program.operations))
    assert graph.launch(0, 1) == 3 * MS


@pytest.mark.scripts
def test_a_kernel_has_a_launch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Sigmoid(), nn.Tanh(), nn.Linear(8, 8))
    program = trace(Iteration(module, (torch.randn(64, 8),), mean_square))
    monkeypatch.setattr(choice, "measured_pair", lambda _members, _kernel: Pair(0.1, 0.0, 512, (), 7 * MS))
    found = choice.chosen(program, [Measurement(1 * MS, 0.0, 2**30, launch=MS) for _ in program.operations])
    graph = graph_from(found.program, found.measured)
    assert found.groups
    names = {name: graph.launch(k) for k, name in enumerate(one.name for one in found.program.operations)}
    assert all(seconds == (7 * MS if name in found.groups else MS) for name, seconds in names.items())


@pytest.mark.clock
def test_many_tiny_operations_take_what_the_thread_takes() -> None:
    """The plan says so, and so it comes."""
    iteration, device = layers(12), simulated(4 * MS)
    program = trace(iteration)
    costs = [Cost(1e-5, launch_seconds=4 * MS)] * len(program.operations)
    graph = graph_of(program, costs, block_bytes=512)
    schedule = baseline_schedule(graph)
    planned = simulate(graph, schedule).figures.time
    assert planned == pytest.approx(len(program.operations) * 4 * MS)
    step = PlannedStep(iteration, program, schedule, Terms(graph, device=device))
    step.run(iteration.inputs)

    def period(iterations: int = 4) -> float:
        device.synchronize()
        start = perf_counter()
        for _ in range(iterations):
            step.run(iteration.inputs)
        device.synchronize()
        return (perf_counter() - start) / iterations

    assert planned <= min(period() for _ in range(5)) < 1.4 * planned  # a busy machine only adds
