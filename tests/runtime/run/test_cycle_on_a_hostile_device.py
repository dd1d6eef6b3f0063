"""The simulated device is as hostile as CUDA; schedules on it give what eager gives, in planned memory."""

import gc
import random
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import memplan
import pytest
import torch
from hostile import (
    FAULTS,
    NETS,
    Case,
    case,
    check,
    check_fault,
    eagerly,
    net_of,
    planned_step,
    program_of,
    seeded,
)
from iterations import mean_square
from memplan.devices.storage.arena import _arenas
from memplan.graphs.graph import Kind
from memplan.graphs.machine import Memory
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.peaks import peaks
from memplan.profiling.compare.timing import Run, window, windows
from memplan.runtime.run.cycle import Terms
from memplan.runtime.run.over_plan import WATCHED_ITERATIONS
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from not_none import not_none
from simulated_device.device import SimulatedDevice
from simulated_device.pinned import PinnedMemory
from simulated_device.threads import Delays, DeviceFaultError
from torch import nn
from transfers import MACHINE, absent, assert_equal, everything, in_order, train_eagerly, unmeasured
from waits import WAITS, check_wait

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from removed_waits import REMOVALS

PACKAGE = Path(memplan.__file__).parent


@pytest.fixture
def device():
    return SimulatedDevice(delays=lambda seed: Delays(seed, 0.0))


class Gate:
    """What a stream stands before until it is opened."""

    def __init__(self, device, stream):
        self._event = threading.Event()
        stream.give(lambda: self._event.wait(30))

    def open(self):
        self._event.set()


def full(device, value, size=8):
    """Memory of the device that has its content already."""
    made = device.room(size)
    device.synchronize()
    made.fill_(value)
    return made


def is_poison(tensor):
    return bool((tensor == 255).all())


# ── the device ──────────────────────────────────────────────────────────────────────────────────────


def test_memory_has_no_content_when_it_is_handed_out_and_none_when_it_is_given_back(device):
    made = full(device, 7)
    alias = device.alias(made)
    assert (device.allocated_bytes(), alias.tolist()) == (512, [7] * 8)
    del made
    assert device.allocated_bytes() == 0
    device.synchronize()
    assert is_poison(alias)
    recomputed = device.room(8)
    device.synchronize()
    assert recomputed.data_ptr() == alias.data_ptr()
    assert is_poison(recomputed)


def test_memory_is_free_at_once_and_poisoned_in_the_order_of_the_stream(device):
    made = full(device, 7)
    alias, gate = device.alias(made), Gate(device, device.current_stream())
    del made
    assert device.allocated_bytes() == 0
    assert alias.tolist() == [7] * 8
    gate.open()
    device.synchronize()
    assert is_poison(alias)


def test_a_view_keeps_its_storage(device):
    made = full(device, 7)
    view = made[2:4]
    del made
    assert device.allocated_bytes() == 512
    del view
    assert device.allocated_bytes() == 0


def test_a_copy_is_queued_and_its_target_poison_until_it_ends(device):
    source, target = full(device, 7), device.host_memory(8).fill_(1)
    stream = device.stream()
    gate = Gate(device, stream)
    with device.on(stream):
        device.copy(source, target)
        event = device.event()
        event.record()
    assert target.tolist() == [1] * 8
    gate.open()
    event.synchronize()
    assert target.tolist() == [7] * 8


def test_a_copy_from_or_to_memory_that_is_not_pinned_is_waited_for():
    device = SimulatedDevice(delays=lambda seed: Delays(seed, 1.0, 0.02))
    source, target = full(device, 7), torch.zeros(8, dtype=torch.uint8)
    device.copy(source, target)
    assert target.tolist() == [7] * 8
    device.copy(torch.full((8,), 9, dtype=torch.uint8), source)
    assert source.tolist() == [9] * 8


def test_a_stream_waits_for_the_place_where_an_event_was_recorded_last(device):
    done, one, other = [], device.stream(), device.stream()
    gate = Gate(device, one)
    one.give(lambda: done.append("one"))
    event = one.record_event()
    other.wait_event(event)
    other.give(lambda: done.append("other"))
    time.sleep(0.05)
    assert done == []
    gate.open()
    other.synchronize()
    assert done == ["one", "other"]


def test_an_event_that_was_never_recorded_is_passed(device):
    stream = device.stream()
    stream.wait_event(device.event())
    device.event().synchronize()
    stream.synchronize()


@pytest.mark.parametrize("end", ["source", "target"])
def test_a_copy_has_both_ends_for_itself(device, end):
    """A free that does not wait for it, and whoever has the memory next."""
    memory, host, stream = full(device, 7), device.host_memory(8).fill_(1), device.stream()
    begun, pauses = threading.Event(), iter((lambda: None, lambda: begun.set() or time.sleep(0.1), time.time))
    stream.delays.pause = lambda: next(pauses)()
    with device.on(stream):
        device.copy(*((memory, host) if end == "source" else (host, memory)))
    begun.wait(10)
    device.alias(memory).fill_(3)
    with pytest.raises(DeviceFaultError, match=f"a copy's {end} (changed|was written) before it ended"):
        device.synchronize()


def test_memory_is_not_given_back_before_its_copies_have_ended(device):
    """But where the stream that gives it back has waited for them."""
    for waited in (True, False):
        made, host, stream = full(device, 7), device.host_memory(8), device.stream()
        gate = Gate(device, stream)
        with device.on(stream):
            device.copy(made, host)
            event = device.moment()
        if waited:
            device.current_stream().wait_event(event)
        del made
        threading.Timer(0.05, gate.open).start()
        if waited:
            device.synchronize()
    with pytest.raises(DeviceFaultError, match="given back before a copy of it had ended"):
        device.synchronize()


def test_pinned_memory_has_powers_of_two_bytes_and_a_limit():
    pinned = PinnedMemory(limit=4096 + 1024)
    one, other = pinned.take(2049), pinned.take(600)
    assert (pinned.held, pinned.reserved) == (2649, 5120)
    with pytest.raises(RuntimeError, match="out of memory: 5,120 bytes of pinned memory"):
        pinned.take(1)
    del other
    assert (pinned.held, pinned.reserved) == (2049, 5120)
    with pytest.raises(RuntimeError, match="out of memory"):
        pinned.take(512)  # a block of 1,024 bytes is free, which is for its own size only
    assert is_poison(pinned.take(1000))
    del one


def test_pinned_memory_is_held_until_its_copies_have_ended(device):
    source, target, stream = full(device, 7), device.host_memory(8), device.stream()
    gate = Gate(device, stream)
    with device.on(stream):
        device.copy(source, target)
    del target
    assert device.pinned.held == 8
    gate.open()
    stream.synchronize()
    assert device.pinned.held == 0


def test_errors_by_choice(device):
    device.faults.plan("allocation", 2, torch.OutOfMemoryError("by choice"))
    device.room(8)
    with pytest.raises(torch.OutOfMemoryError, match="by choice"):
        device.room(8)
    device.faults.plan("copy", 1, RuntimeError("by choice"))
    with pytest.raises(RuntimeError, match="by choice"):
        device.copy(full(device, 7), device.host_memory(8))
    device.room(8)


def test_out_of_memory_says_what_there_is():
    device = SimulatedDevice(capacity=2 * 2**20)
    kept = device.room(2**20)
    with pytest.raises(torch.OutOfMemoryError, match=r"tried to allocate 2,097,152 bytes; 1,048,576 of"):
        device.room(2 * 2**20)
    del kept


def test_what_fails_on_the_device_is_told_by_whoever_asks_it_next(device):
    device.current_stream().give(lambda: 1 / 0)
    with pytest.raises(DeviceFaultError, match="ZeroDivisionError"):
        device.synchronize()
    with pytest.raises(DeviceFaultError, match="ZeroDivisionError"):
        device.room(8)


# ── iterations ──────────────────────────────────────────────────────────────────────────────────────


def test_a_plain_schedule_is_queued_and_right(device):
    """The call returns while the device still stands; nothing of the results is there."""

    def iteration():
        torch.manual_seed(0)
        return Iteration(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), (torch.randn(5, 3),), mean_square)

    planned = iteration()
    program = trace(planned)
    graph = unmeasured(program)
    step = PlannedStep(planned, program, baseline_schedule(graph), Terms(graph, device=device))
    step.run(planned.inputs)
    device.synchronize()
    gate = Gate(device, device.current_stream())
    outcome = step.run(planned.inputs)
    loss = not_none(outcome.loss).item()
    gate.open()
    device.synchronize()
    assert loss != not_none(outcome.loss).item()
    assert_equal(([outcome], everything(planned)), train_eagerly(iteration(), 1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "optimizer", "count"),
    [(name, optimizer, 5 if number < 3 else 1) for number, (name, optimizer) in enumerate(NETS)],
)
def test_random_schedules_give_what_eager_gives_in_the_memory_planned(name, optimizer, count):
    for number in range(count):
        check(name, optimizer, number)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [7, 8, 9, 11, 28, 30, 51, 81, 3020])
def test_an_iteration_that_fails_is_taken_back_and_training_goes_on(seed):
    """9, 30, 81: jobs still copied from memory that the iteration let go of. 28, 51: what was to be filled
    again by a job that never began is good yet. 3020: an iteration leaves a delete to the next.

    Of a step that nobody has any more no pinned memory is left, though it has failed."""
    kind = list(FAULTS)[seed % len(FAULTS)]
    assert check_fault(*net_of(seed), seed, kind).endswith("turns followed")
    gc.collect()
    assert not list(_arenas)


def test_weights_that_have_come_to_lie_in_one_memory_have_their_own_again_on_the_device():
    """As `vector_to_parameters` leaves them, in the device's memory or in a larger block of it."""
    name, optimizer = NETS[0]
    program = program_of(name, optimizer)
    graph = unmeasured(program)
    schedule = absent(
        graph, in_order(graph), random.Random(7), 0.5, kinds=(Kind.PARAMETER,), memories=(Memory.HOST,)
    )
    made = Case(seeded(name, optimizer), program, graph, schedule, None, MACHINE)
    device = SimulatedDevice()
    step = planned_step(made, device)
    assert Memory.DEVICE in {memory for memory, _storage in not_none(step.cycle).places}
    outcomes = []
    for turn in range(3):
        torch.manual_seed(turn)
        outcomes.append(step.run(made.iteration.inputs))
        step.restore_to_device()
        weights = list(made.iteration.module.parameters())
        room, start = device.room(sum(weight.nbytes for weight in weights)), 0
        for weight in weights:
            here = room[start : start + weight.nbytes]
            device.copy(weight.detach().view(-1).view(torch.uint8), here)
            weight.data, start = here.view(weight.dtype).view(weight.shape), start + weight.nbytes
    device.synchronize()
    assert_equal((outcomes, everything(made.iteration)), eagerly(name, optimizer, 3))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", WAITS)
def test_a_schedule_that_needs_this_wait(name):
    check_wait(name)


def test_a_new_thread_computes_as_the_first_one_does():
    """It has PyTorch's number of threads from the start: convolutions round otherwise with more."""
    name, optimizer = net_of(27)
    check(name, optimizer, 27, starved="")


def test_the_table_of_waits_is_of_this_code():
    """`benchmarks/removed_waits.py` finds each line that it takes out, once."""
    for removal in REMOVALS:
        source = (PACKAGE / f"{removal.file}.py").read_text()
        assert source.count(removal.line) == 1, removal.name


@pytest.mark.scripts
def test_a_wait_that_is_taken_out_is_noticed():
    """So `benchmarks/removed_waits.py` does take it out."""
    script = Path(__file__).parents[3] / "benchmarks" / "removed_waits.py"
    command = [sys.executable, str(script), "1", "a transfer waits for others"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 removals, 0 not noticed in 1 schedules" in done.stdout


# ── the peaks of a user's iterations ────────────────────────────────────────────────────────────────


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["in_place", "perceptron", "unet"])
def test_iterations_within_their_plan_are_silent(name):
    """Beside other tensors on the device that come and go."""
    for number in range(3):
        made, device = case(name, None, random.Random(number)), SimulatedDevice(number)
        step, others = planned_step(made, device), []
        for _turn in range(WATCHED_ITERATIONS + 2):
            others = [device.room(size) for size in (2**20, 512)]
            with warnings.catch_warnings(action="error", category=UserWarning):
                step.run(made.iteration.inputs)
            del others[0]
        step.restore_to_device()
        device.synchronize()


def test_an_iteration_that_takes_more_than_planned_tells_once():
    made, device = case("in_place", None, random.Random(0)), SimulatedDevice(0)
    sizes = made.graph.tensors.bytes.copy()
    sizes[made.graph.tensors.kind == Kind.ACTIVATION] //= 2
    graph = replace(made.graph, tensors=replace(made.graph.tensors, bytes=sizes))
    schedule = baseline_schedule(graph)
    step = PlannedStep(made.iteration, made.program, schedule, Terms(graph, device=device))
    with pytest.warns(
        UserWarning, match="an internal error: .* bytes on the device, .* more than planned"
    ) as reported:
        outcomes = [step.run(made.iteration.inputs) for _turn in range(2)]
    assert (len(outcomes), len(reported)) == (2, 1)


# ── measured beside plain PyTorch ───────────────────────────────────────────────────────────────────


def test_an_iteration_is_timed_among_others_that_follow_each_other(device):
    """The host works for one while the device works for the one before: what each takes is not added."""

    def run():
        time.sleep(0.01)
        device.launch(lambda: time.sleep(0.01))

    alone = window(run, 1, 0, device)
    among = window(run, 10, 2, device)
    assert alone > 0.015
    assert 0.01 <= among < 0.015


def test_windows_of_both_take_turns_and_are_waited_for_once(device, monkeypatch):
    seen, synchronize = [], device.synchronize
    monkeypatch.setattr(device, "synchronize", lambda: (seen.append("|"), synchronize()))
    step: Any = SimpleNamespace(device=device, cycle=None)
    runs = [Run(lambda name=name: seen.append(name), lambda: seen.append(".")) for name in "ep"]
    windows(runs, 2, step, most=3)
    assert "".join(seen) == "e|eeeee|.p|ppppp|." + "eeeee|.ppppp|."


def test_what_libraries_keep_on_the_device_is_measured_and_counts():
    """The allocator's own peak, all there is: the plan's and that."""
    device = SimulatedDevice(delays=lambda seed: Delays(seed, 0.0), constant=8 * 2**20)
    made = case("perceptron", None, random.Random(3))
    step = planned_step(made, device)
    step.run(made.iteration.inputs)
    figures = simulate(made.graph, made.schedule, budget=made.budget, machine=made.machine).figures
    device._kept.append(device.room(8 * 2**20))  # as cuBLAS keeps one for eager's backward thread, too
    with warnings.catch_warnings(action="ignore"):
        found = peaks(step, made.iteration.inputs)
    assert device.constant_bytes() == found.constant == 8 * 2**20
    assert found.device == device.peak_bytes() == figures.peak + found.constant
    step.restore_to_device()
    assert SimulatedDevice().constant_bytes() == 0
