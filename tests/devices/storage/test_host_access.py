"""Values of tensors that are away are read and written on host and disk, without the device."""

from __future__ import annotations

import random
from typing import Any

import hostile
import pytest
import torch
from away import moving, overwrite
from memplan.devices.storage.disk import File
from memplan.devices.storage.host_access import at_home, at_home_value, replace_at_home
from memplan.devices.storage.offloaded import Offloaded
from memplan.graphs.errors import MemplanError
from memplan.graphs.machine import Memory
from memplan.steps.execute import PlannedStep
from transfers import adamw, everything, seeded, train_eagerly


def tensors(iteration: Any) -> dict[str, torch.Tensor]:
    """Weights, buffers and states themselves."""
    named = dict(iteration.module.state_dict(keep_vars=True))
    for index, row in iteration.updates.optimizer.state_dict()["state"].items():
        named |= {f"{index}.{name}": tensor for name, tensor in row.items()}
    return named


def lying_in(memory: Memory, iteration: Any) -> PlannedStep:
    """A step that moves all weights, and has some of what it moves there between iterations."""
    steps = (moving(iteration, seed, (memory,)) for seed in range(20))
    return next(step for step in steps if step.cycle and memory in dict(step.cycle.places))


@pytest.mark.parametrize("name", ["perceptron", "tied"])
@pytest.mark.parametrize("memory", [Memory.HOST, Memory.DISK])
def test_values_are_read_and_written_where_they_lie(name: str, memory: Memory) -> None:
    """After each turn all values are eager's; before each they are replaced by those of another run."""
    iteration, other = seeded(name, adamw), seeded(name, adamw)
    step = lying_in(memory, iteration)
    train_eagerly(other, 2)
    torch.manual_seed(5)
    step.run(iteration.inputs)
    there = tensors(iteration)
    moved = {key: tensor for key, tensor in there.items() if isinstance(tensor, Offloaded)}
    assert len(moved) >= len(step.program.parameters)
    for key, value in everything(other).items():
        replace_at_home(there[key], value)
    for turn in range(3):
        with at_home():
            found = {key: tensor.cpu() for key, tensor in tensors(iteration).items()}
        assert found.keys() == everything(other).keys()
        assert all(torch.equal(found[key], value) for key, value in everything(other).items()), turn
        assert all(isinstance(tensor, Offloaded) for tensor in moved.values())
        torch.manual_seed(turn)
        step.run(iteration.inputs)
        step.place()
        torch.manual_seed(turn)
        hostile.run_eager(other)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", range(6))
def test_on_a_device_of_its_own_nothing_of_it_is_taken(number: int) -> None:
    """Whatever is still queued on it: what is read is what the iterations give, all jobs ended."""
    name, optimizer = hostile.NETS[number % 3]
    made = hostile.case(name, optimizer, random.Random(number))
    late = hostile.Lateness(number)
    device = late.device()
    with late.jobs():
        step = hostile.planned_step(made, device)
        for turn in range(3):
            torch.manual_seed(turn)
            step.run(made.iteration.inputs)
        device.synchronize()
        taken = device.requested_bytes()
        device.reset_peak()
        offloaded = {
            key: at_home_value(x).clone()
            for key, x in tensors(made.iteration).items()
            if type(x) is not torch.Tensor
        }
        assert device.requested_peak_bytes() == taken
        step.restore_to_device()
        device.synchronize()
        found = everything(made.iteration)
    expected = hostile.eagerly(name, optimizer, 3)[1]
    for key, value in offloaded.items():
        assert torch.equal(value, expected[key]), key
        assert torch.equal(found[key], expected[key]), key


def test_other_bytes_on_the_disk_are_one_line() -> None:
    iteration = seeded("perceptron", adamw)
    step = lying_in(Memory.DISK, iteration)
    step.run(iteration.inputs)
    assert step.cycle is not None
    files = [copy for x in step.cycle.moved for copy in step.cycle.copies(x) if isinstance(copy, File)]
    for file in files:
        overwrite(file, bytes(4))
    with pytest.raises(MemplanError, match="comes back with other bytes"):
        _ = [at_home_value(tensor) for tensor in tensors(iteration).values()]
