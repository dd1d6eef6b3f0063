"""Pinned memory is what was planned, in one piece; where it can't be had, copies are slower and right."""

from __future__ import annotations

import gc
import random
import warnings
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep

import pytest
import torch
from hostile import NETS, Case, Lateness, case, check_case, eagerly, planned_step, same, train
from memplan.devices.device.device import Unpin
from memplan.devices.storage import arena
from memplan.devices.storage.arena import Arena
from memplan.graphs.machine import Link, Links, Machine, Memory
from memplan.planner.addresses.lifetimes import lifetimes
from memplan.planner.addresses.pinned import PAGE, pinned_layout, pinned_room
from memplan.planner.baseline import baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.simulator.pinned import PINNED
from memplan.planner.simulator.simulate import simulate
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from not_none import not_none
from simulated_device.device import SimulatedDevice
from strategies import random_case
from transfers import adamw, assert_equal, everything

BLOCKS = NETS[0]


@pytest.fixture(autouse=True)
def no_others() -> None:
    """No plan of an earlier test has pinned memory: a thread may hold its last job for a moment."""
    wait_until_unpinned()


def wait_until_unpinned() -> None:
    end = monotonic() + 10
    while arena._arenas and monotonic() < end:
        gc.collect()
        sleep(0.01)


def moving(seed: int) -> Case:
    """One of many schedules with pinned memory, on a machine without limits."""
    made = case(*BLOCKS, random.Random(seed))
    return made._replace(machine=Machine(links=made.machine.links))


def lines_of(reported: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in reported if each.category is UserWarning]


def test_less_is_pinned_at_no_cost_in_time() -> None:
    """No byte less than that is valid, or as fast; no two copies share a byte."""
    fewer = count = 0
    for seed in range(500):
        graph, schedule, budget, machine = random_case(random.Random(seed))
        machine = machine or Machine()
        try:
            figures = simulate(graph, schedule, budget=budget, machine=machine).figures
        except InvalidScheduleError:
            continue
        if not figures.pinned_peak:
            continue
        count += 1
        slowest = figures.time * 1.001
        room = pinned_room(graph, schedule, budget=budget, machine=machine)
        tight = simulate(graph, schedule, budget=budget, machine=replace(machine, pinned=room)).figures
        assert tight.pinned_peak <= room <= figures.pinned_peak
        assert tight.time <= slowest
        fewer += room < figures.pinned_peak
        less = replace(machine, pinned=room - 1)
        with suppress(InvalidScheduleError):
            assert simulate(graph, schedule, budget=budget, machine=less).figures.time > slowest
        machine, layout = pinned_layout(graph, schedule, budget=budget, machine=machine)
        assert layout.overlap() is None
        live = lifetimes(graph, schedule, PINNED, budget=budget, machine=machine).live()
        assert live.max() <= room
    assert count > 20
    assert fewer > 5


def test_where_a_disk_is_used_large_copies_begin_at_pages() -> None:
    """So that it takes them from where they are; small ones would take too much more."""
    paged = 0
    for seed in range(8):
        made = moving(seed)
        sizes = made.graph.tensors.bytes
        large = replace(made.graph, tensors=replace(made.graph.tensors, bytes=2049 * sizes))
        to_disk = simulate(made.graph, made.schedule, machine=made.machine).figures.disk_peak > 0
        _machine, layout = pinned_layout(large, made.schedule, budget=None, machine=made.machine)
        assert layout.overlap() is None
        if to_disk:
            assert not (layout.offsets % PAGE).any()
        paged += to_disk
    assert paged > 2
    small = moving(5)
    _machine, layout = pinned_layout(small.graph, small.schedule, budget=None, machine=small.machine)
    assert (layout.offsets % PAGE).any()
    assert Arena(SimulatedDevice(), 2 * PAGE).bytes(PAGE, 1).data_ptr() % PAGE == 0


def test_what_the_device_pins_is_what_was_planned() -> None:
    """Turn by turn the same bytes; torch's own blocks would have taken more, by powers of two."""
    for seed in range(3):
        made, device = moving(seed), SimulatedDevice(seed)
        step = planned_step(made, device)
        assert step.cycle is not None
        assert step.cycle.addresses is not None
        planned = step.cycle.addresses.size
        assert device.pinned.reserved == planned > 0
        assert_equal(train(made, step, device), eagerly(*BLOCKS, 3))
        assert device.pinned.reserved == planned
        assert device.pinned.held == 0


@pytest.mark.parametrize("limit", [0, 2**10])
def test_memory_that_can_not_be_pinned_is_told_in_one_line(limit: int) -> None:
    """The results are the same; nothing is pinned."""
    made, device = moving(0), SimulatedDevice(0, pinned_limit=limit)
    with pytest.warns(
        UserWarning, match="can't be pinned: .* bytes of pinned memory are all .*ulimit -l"
    ) as reported:
        step = planned_step(made, device)
    assert len(reported) == 1
    assert "\n" not in str(reported[0].message)
    assert step.cycle is not None
    assert step.cycle.host.arena is None
    assert_equal(train(made, step, device), eagerly(*BLOCKS, 3))
    assert device.pinned.reserved == 0


@pytest.mark.scripts
def test_the_machines_limit_holds_for_all_plans_together() -> None:
    made = moving(0)
    first = planned_step(made, SimulatedDevice(0))
    assert first.cycle is not None
    assert first.cycle.host.arena is not None
    limit = first.cycle.host.arena.size
    with pytest.warns(UserWarning, match="other plans'"):
        second = planned_step(made._replace(machine=replace(made.machine, pinned=limit)), SimulatedDevice(0))
    assert second.cycle is not None
    assert second.cycle.host.arena is None
    first.restore_to_device()
    del first, second
    wait_until_unpinned()
    assert not arena._arenas


@pytest.mark.scripts
def test_with_little_to_pin_late_copies_keep_their_places() -> None:
    """The least pinned memory with which a schedule holds, and whoever is late. What has no place is told, in
    one line, and once where nothing can be pinned."""
    cut = 0
    for seed in (2, 5, 46):
        made = moving(seed)
        figures = simulate(made.graph, made.schedule, budget=made.budget, machine=made.machine).figures
        made = made._replace(machine=replace(made.machine, pinned=figures.least_pinned))
        wait_until_unpinned()
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            step, refused = planned_step(made, SimulatedDevice()), SimulatedDevice(pinned_limit=0)
            assert step.cycle is not None
            assert step.cycle.addresses is not None
            planned = step.cycle.addresses.size
            del step
            cuts = lines_of(reported)
            planned_step(made, refused)
            check_case(*BLOCKS, made, Lateness(seed))
        above = planned > figures.least_pinned
        cut += above
        assert len(cuts) == above
        for line in cuts:
            assert f"{planned:,} bytes of pinned memory" in line
            assert f"host.pinned is {figures.least_pinned:,}: those above are not pinned" in line
        assert sum("can't be pinned" in line for line in lines_of(reported)) == 1
        assert len(lines_of(reported)) == 1 + 2 * above
    assert 0 < cut < 3


def test_a_plan_that_pins_nothing_runs_so() -> None:
    """Its copies are slower and as right, whoever is late; nobody is warned."""
    link = Link(1e9, pageable=1e8)
    for seed in range(2):
        made = moving(seed)._replace(machine=Machine(links=Links(link, link, 1e9, 1e9)).without_pinned())
        with warnings.catch_warnings(action="error", category=UserWarning):
            check_case(*BLOCKS, made, Lateness(seed))
            step = planned_step(made, SimulatedDevice(seed))
        assert step.cycle is not None
        assert (step.cycle.host.arena, step.cycle.figures.pinned_peak) == (None, 0)
        assert step.cycle.figures.host_peak > 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_a_step_in_the_place_of_another_has_its_pinned_memory(seed: int, fails: bool) -> None:
    """On a device that has no room for both arenas; or the first one goes on, with its own."""
    first, other = moving(seed), moving(seed + 20)
    second, outcomes = other._replace(iteration=first.iteration), []
    sizes = [
        pinned_layout(made.graph, made.schedule, budget=made.budget, machine=made.machine)[1].size
        for made in (first, second)
    ]
    device = SimulatedDevice(seed, pinned_limit=max(sizes))

    def turn(step: PlannedStep, number: int) -> None:
        torch.manual_seed(number)
        outcome = step.run(first.iteration.inputs)
        device.synchronize()
        outcomes.append(outcome._replace(loss=not_none(outcome.loss).clone(), gradients={}))

    with warnings.catch_warnings(action="error", category=UserWarning):
        step = planned_step(first, device)
        turn(step, 0)
        turn(step, 1)
        assert step.cycle is not None
        step.cycle.unpin()
        assert device.pinned.reserved == 0
        if fails:
            step.cycle.pin()
        else:
            before, step = step, planned_step(second, device)
            step.place()
            del before
    assert step.cycle is not None
    assert device.pinned.reserved == sizes[not fails] > 0
    for memory, storage in step.cycle.places:
        if memory == Memory.HOST and not_none(step.cycle.addresses).initial(storage) is not None:
            assert step.cycle.held[f"h{storage}"].is_pinned
    turn(step, 2)
    step.restore_to_device()
    device.synchronize()
    assert_equal((outcomes, everything(first.iteration)), eagerly(*BLOCKS, 3))


@pytest.mark.parametrize("limit", [None, 0], ids=["pinned", "refused"])
def test_what_an_iteration_overwrites_is_kept_in_one_pinned_block(limit: int | None) -> None:
    """Where nothing can be pinned, in memory of its own; the values are kept either way."""
    made, pinned = case("perceptron", adamw, random.Random(3)), list[int]()

    class Counting(SimulatedDevice):
        def pin(self, memory: torch.Tensor) -> Unpin:
            pinned.append(memory.nbytes)
            return super().pin(memory)

    device = Counting(pinned_limit=limit)
    terms = Terms(made.graph, device=device)
    step = PlannedStep(made.iteration, made.program, baseline_schedule(made.graph), terms, undo=True)
    step.run(made.iteration.inputs)
    assert not pinned or len(pinned) == 1
    device.synchronize()
    before = everything(made.iteration)
    device.faults.plan("launch", len(made.program.operations), RuntimeError("by choice"))
    with pytest.raises(RuntimeError, match="by choice"):
        step.run(made.iteration.inputs)
    device.synchronize()
    assert len(step.journal.kept) > 5
    changed = {x for operation in made.program.operations for x in operation.mutates}
    assert step.journal.host.count.bytes == sum(made.program.storages[x].bytes for x in changed)
    assert same(everything(made.iteration), before)
    if limit is None:
        assert pinned == [device.pinned.reserved]
    else:
        assert step.journal.host.arena is None
