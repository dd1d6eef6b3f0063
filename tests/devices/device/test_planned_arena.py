"""Planned addresses on the simulated device: each allocation lies in its place, and results are eager's."""

import gc
import random
from unittest.mock import patch

import pytest
import torch
from hostile import NETS, TURNS, Lateness, between_device_and_host, case, eagerly, train
from memplan.devices.device.cuda import Cuda
from memplan.devices.device.planned_arena import PlannedRooms
from memplan.graphs.errors import InputError
from memplan.planner.addresses.addresses import lay_out, rows_of
from memplan.planner.addresses.caching_allocator import BLOCK, OWN_ROUNDING, CachingAllocator, round_up
from memplan.runtime.run import over_plan
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from not_none import not_none
from simulated_device.device import SimulatedDevice
from transfers import assert_equal


def made_of(seed):
    """A random schedule, every other time one with copies between device and host alone."""
    if seed % 2:
        return *NETS[seed % 3], between_device_and_host(seed)
    name, optimizer = NETS[seed % len(NETS)]
    return name, optimizer, case(name, optimizer, random.Random(seed))


def placed_step(made, device):
    layout = lay_out(rows_of(made.graph, made.schedule, budget=made.budget, machine=made.machine))
    terms = Terms(made.graph, made.budget, made.machine, device=device, layout=layout)
    return PlannedStep(made.iteration, made.program, made.schedule, terms)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(10))
def test_everything_lies_where_it_was_planned(seed, monkeypatch):
    name, optimizer, made = made_of(seed)
    late = Lateness(seed, None)
    device = late.device()
    with late.jobs(), patch.object(over_plan, "WATCHED_ITERATIONS", 0):
        step = placed_step(made, device)
        assert_equal(train(made, step, device), eagerly(name, optimizer, TURNS))
        step.place()
        outside = []
        malloc = CachingAllocator.malloc
        monkeypatch.setattr(
            CachingAllocator, "malloc", lambda self, *call: outside.append(call[0]) or malloc(self, *call)
        )
        for _turn in range(TURNS):
            step.run(made.iteration.inputs)
            device.synchronize()
        scalars = [made.program.loss, made.program.norm, made.program.infinite]
        assert sum(map(bool, outside)) <= TURNS * sum(value is not None for value in scalars)
        assert max(outside, default=0) <= BLOCK
        assert not_none(step.rooms).missed == 0
        step.restore_to_device()


@pytest.mark.parametrize("seed", [1, 5, 9])
def test_no_more_is_reserved_than_the_arena_and_what_is_always_there(seed):
    *_net, made = made_of(seed)
    device = SimulatedDevice(seed)
    step = placed_step(made, device)
    for _turn in range(TURNS):
        step.run(made.iteration.inputs)
    device.synchronize()
    device.allocator.release_cached()
    arena = round_up(not_none(step.rooms).placement.size, OWN_ROUNDING)
    always = made.graph.resident.copy()
    always[list(not_none(step.cycle).moved)] = False
    others = round_up(int(made.graph.tensors.bytes[always].sum()) + BLOCK, OWN_ROUNDING)
    assert device.allocator.reserved <= arena + others
    for _turn in range(TURNS):
        step.run(made.iteration.inputs)
    assert device.allocator.reserved_peak <= arena + 2 * others
    step.restore_to_device()


def test_what_is_still_in_a_place_sends_others_elsewhere():
    rooms = PlannedRooms(0, 100)
    rooms.expect((10, 0), (10, 5), (10, 10), (10, 95), (5, 40))
    assert [rooms.take(10) for _ in range(5)] == [0, None, 10, None, None]
    assert rooms.missed == 20  # the last has asked for more than is planned
    assert rooms.take(1) is None
    rooms.free(0)
    rooms.expect((10, 0))
    assert rooms.take(9) == 0


def test_gradients_that_are_kept_are_not_overwritten():
    """The next iteration's come to lie beside the arena."""
    made = case("perceptron", None, random.Random(3))
    device = SimulatedDevice(3)
    step = placed_step(made, device)
    kept, copies = [], []
    for _turn in range(3):
        kept.append(step.run(made.iteration.inputs).gradients)
        device.synchronize()
        copies.append({name: tensor.clone() for name, tensor in kept[-1].items()})
    assert not_none(step.rooms).missed > 0
    for gradients, before in zip(kept, copies, strict=True):
        assert gradients
        assert all(torch.equal(gradients[name], before[name]) for name in gradients)
    pointers = [tensor.data_ptr() for gradients in kept for tensor in gradients.values()]
    assert len(set(pointers)) == len(pointers)
    step.restore_to_device()


@pytest.mark.parametrize("theirs", ["", "max_split_size_mb:64"])
def test_cuda_grows_its_segments_unless_the_environment_says_otherwise(monkeypatch, theirs):
    said = []
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", theirs)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setattr("torch._C._accelerator_setAllocatorSettings", said.append)
    assert Cuda(torch.device("cuda")).arena(2**20) is None
    assert said == ([] if theirs else ["expandable_segments:True"])


def test_a_device_smaller_than_the_arena_is_one_line():
    made = case(*NETS[0], random.Random(0))
    with pytest.raises(InputError, match="plan for a smaller budget") as raised:
        placed_step(made, SimulatedDevice(0, capacity=64 * 2**10))
    assert "\n" not in str(raised.value)


@pytest.mark.scripts
def test_an_arena_is_shared_and_goes_with_the_last_step():
    made = case(*NETS[0], random.Random(0))
    device = SimulatedDevice(0)
    one = placed_step(made, device)
    other = placed_step(made, device)
    assert device.allocator.reserved == round_up(not_none(one.rooms).placement.size, OWN_ROUNDING)
    del one, other
    gc.collect()
    device.room(1)
    device.allocator.release_cached()
    assert device.allocator.reserved <= 2 * OWN_ROUNDING
