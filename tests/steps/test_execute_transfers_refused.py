"""What schedules with transfers need and the machine lacks: refused in one line, before or while they run."""

import random
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from memplan.devices.device.choice import device_of
from memplan.devices.storage import disk, host_buffers
from memplan.devices.storage.copies import value
from memplan.devices.storage.host_buffers import Host
from memplan.graphs.errors import InputError, MemplanError
from memplan.graphs.graph import Mode
from memplan.graphs.machine import Link, Machine, Memory, Tier
from memplan.planner.baseline import baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Initial, Schedule, delete, offload
from memplan.program.program import Value
from memplan.runtime.codegen.host_calls import check_mode
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from transfers import (
    MACHINE,
    absent,
    in_order,
    seeded,
    train_by_plan,
    unmeasured,
)

HOST, DISK = Memory.HOST, Memory.DISK


def test_bytes_that_are_too_few_for_a_value():
    """Never memory without content."""
    form = Value(0, (4, 3), (3, 1), 2, torch.float32, torch.device("cpu"))
    assert form.end == 56
    assert value(torch.zeros(56, dtype=torch.uint8), form).shape == (4, 3)
    with pytest.raises(MemplanError, match="needs 56 bytes has come back with 55"):
        value(torch.zeros(55, dtype=torch.uint8), form)


def moved_to(memory, terms=None, name="perceptron"):
    iteration = seeded(name)
    program = trace(iteration)
    graph = unmeasured(program)
    schedule = absent(graph, in_order(graph), random.Random(1), memories=(memory,))
    return iteration, PlannedStep(iteration, program, schedule, (terms or Terms)(graph, None, MACHINE))


def test_a_schedule_that_does_not_hold_is_refused():
    iteration = seeded("perceptron")
    program = trace(iteration)
    graph = unmeasured(program)
    schedule = Schedule.of([*baseline_schedule(graph)], Initial(host=frozenset([0])))
    with pytest.raises(InvalidScheduleError, match="reads-present"):
        PlannedStep(iteration, program, schedule)
    schedule = absent(graph, in_order(graph), random.Random(1))
    with pytest.raises(InvalidScheduleError, match="the machine has no link"):
        PlannedStep(iteration, program, schedule, Terms(graph, None, Machine()))


def test_a_memory_that_the_runtime_has_not():
    """A schedule that holds, but uses a fourth memory, is refused by the name of that memory."""
    iteration = seeded("perceptron")
    program = trace(iteration)
    graph = unmeasured(program)
    x = int(graph.persistent.nonzero()[0][0])
    steps = [offload(x), offload(x, 2), offload(x, 3), *(delete(x, memory) for memory in (1, 2, 3))]
    schedule = Schedule.of([*steps, *baseline_schedule(graph)])
    machine = replace(MACHINE, deeper=(Tier("archive", None, Link(1e9), Link(1e9)),))
    with pytest.raises(
        MemplanError, match=r"uses the memory 'archive' is not supported: .* without 'archive'"
    ):
        PlannedStep(iteration, program, schedule, Terms(graph, None, machine))


def test_host_memory_that_is_not_there(monkeypatch):
    monkeypatch.setattr(host_buffers, "available_bytes", lambda: 100)
    with pytest.raises(InputError, match=r"the schedule needs .* bytes of host memory, 100 are available"):
        moved_to(HOST)


def test_a_folder_that_is_not_there_or_full(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"nowhere: can't offload to it: No such file"):
        moved_to(DISK, partial(Terms, folder=tmp_path / "nowhere"))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match=r"file: can't offload to it: Not a directory"):
        moved_to(DISK, partial(Terms, folder=file))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=10))
    with pytest.raises(InputError, match=r"the schedule needs .* bytes of disk, 10 are free"):
        moved_to(DISK, partial(Terms, folder=tmp_path))


def test_a_disk_that_fails_while_it_is_used(monkeypatch):
    """One line, wherever it happens; the iteration's tensors are then lost, and that is said too."""
    iteration, step = moved_to(DISK)
    step.run(iteration.inputs)

    def fail(_move, _data, _offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "_all", fail)
    with pytest.raises(MemplanError, match=r": can't (read|write): No space left on device"):
        train_by_plan(iteration, step, 3)
    with pytest.raises(MemplanError, match=r"an iteration failed|can't (read|write)"):
        step.run(iteration.inputs)


def test_host_memory_is_counted_while_a_block_lives():
    host = Host()
    block = host.block(100)
    assert host.count.bytes == 0
    block.open().open()
    assert (host.count.bytes, block.bytes.nbytes, block.bytes.data_ptr() % 64) == (100, 100, 0)
    del block
    assert (host.count.bytes, host.count.peak) == (0, 100)


def test_modes_that_can_not_be_run():
    program = trace(seeded("perceptron"))
    dropout = next(operation for operation in program.operations if operation.random)
    baseline = next(operation for operation in program.operations if not operation.random)
    on_cuda = replace(baseline.call, keywords={"device": torch.device("cuda")})
    host = Mode("host", 1.0, 0, baseline.writes, on_host=True)
    direct = Mode("dha", 1.0, 0, baseline.writes, reads_host=baseline.reads)
    below = Mode("go", 1.0, 0, baseline.writes, writes_host=baseline.writes)
    cpu, cuda = device_of("cpu"), device_of("cuda")
    for operation, mode, device, why in (
        (dropout, host, cpu, "it draws random numbers"),
        (baseline._replace(call=on_cuda), host, cuda, "its call names the device"),
        (baseline, direct, cuda, "reading host memory from cuda is not supported"),
        (baseline, below, cpu, "PyTorch's kernels write no host memory; solve the graph without its modes"),
    ):
        with pytest.raises(MemplanError, match=rf"can't run in mode {mode.name} here: {why}"):
            check_mode(operation, mode, device)
    for mode in (host, direct):
        check_mode(baseline, mode, cpu)
