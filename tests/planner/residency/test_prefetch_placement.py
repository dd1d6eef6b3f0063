"""Prefetches are placed so that they are hidden where link and memory allow it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from layered_training import LINKED, random_runs, training
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.baseline import baseline
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.residency.lifetimes import find_lifetimes
from memplan.planner.residency.prefetch_placement import ResidencyTransfers, build_schedule, place_prefetches
from memplan.planner.residency.residency import Residency, TensorUse
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import simulate
from strategies import random_graph

HOST = Memory.HOST


def chain_of_weights(layers: int, weight: int = 10) -> Graph:
    """F_1 … F_L then B_L … B_1, 1 s each; a frozen weight of `weight` bytes a layer, nothing else."""
    draft = Draft("weights")
    weights = [draft.tensor(f"w{i}", weight, Kind.PARAMETER) for i in range(layers)]
    for i in range(layers):
        draft.operation(f"F{i}", time=1, reads=[weights[i]], writes=[draft.tensor(f"x{i}", 0)])
    for i in reversed(range(layers)):
        out = draft.tensor(f"g{i}", 0, Kind.GRADIENT)
        draft.operation(f"B{i}", time=1, reads=[weights[i]], writes=[out], phase=Phase.BACKWARD)
    return draft.graph()


def all_offloaded(graph: Graph) -> Residency:
    """Every weight leaves after each use but those whose next use is the next run."""
    runs = in_default_mode(range(len(graph.operations)))
    offloaded: dict[TensorUse, Memory] = {}
    for lifetime in find_lifetimes(graph, runs):
        positions = [use.moment // 2 for use in lifetime.uses]
        following = [*positions[1:], *(p + len(runs) for p in positions[:1])]
        for position, after in zip(positions, following, strict=True):
            if lifetime.persistent and after > position + 1:
                offloaded[lifetime.tensor, position] = HOST
    return Residency(runs, offloaded)


@pytest.mark.parametrize("layers", [3, 6])
def test_a_fast_link_hides_all(layers: int) -> None:
    """A weight takes 1 s, as long as an operation: two weights of room are enough, one is not."""
    graph = chain_of_weights(layers)
    machine = Machine(links=Links(d2h=10.0, h2d=10.0))
    two = place_prefetches(graph, machine, 20, all_offloaded(graph))
    one = place_prefetches(graph, machine, 10, all_offloaded(graph))
    assert two is not None
    assert one is not None
    assert two[1].time == pytest.approx(2 * layers)
    assert one[1].time > 2 * layers + 1
    assert place_prefetches(graph, machine, 9, all_offloaded(graph)) is None


def test_a_slow_link_takes_its_time_and_no_more() -> None:
    """Each of the 2 L - 2 copies up takes 3 s: the link never rests."""
    graph = chain_of_weights(6)
    found = place_prefetches(graph, Machine(links=Links(d2h=10.0, h2d=10 / 3)), 40, all_offloaded(graph))
    assert found is not None
    assert found[1].time == pytest.approx(3 * 10)


@pytest.mark.sampled(44)
@pytest.mark.parametrize("seed", range(60))
def test_never_slower_than_just_in_time_and_never_above_the_budget(seed: int) -> None:
    random = Random(seed)
    graph = training(random.randint(2, 5), frozen=random.randint(0, 3))
    runs = random_runs(graph, random)
    offloaded: dict[TensorUse, Memory] = {
        (lifetime.tensor, use.moment // 2): HOST
        for lifetime in find_lifetimes(graph, runs)
        for use in lifetime.uses
        if use.memory == Memory.DEVICE
        and random.random() < 0.5
        and lifetime.uses[0].changes == (not lifetime.persistent)
    }
    residency = Residency(runs, offloaded)
    late = simulate(graph, build_schedule(graph, residency), machine=LINKED).figures
    demand = ResidencyTransfers(graph, LINKED.hierarchy, residency)
    assert demand.device_peak == late.least_budget
    budget = random.randint(late.least_budget, baseline(graph).peak + 40)
    late = simulate(graph, build_schedule(graph, residency), budget=budget, machine=LINKED).figures
    found = place_prefetches(graph, LINKED, budget, residency)
    assert found is not None
    assert found[1].time <= late.time * (1 + 1e-9)
    assert found[1].peak <= budget
    assert place_prefetches(graph, LINKED, late.least_budget - 1, residency) is None
    assert np.all(demand.device_curve >= 0)


def test_the_bytes_of_a_residency_are_the_least_that_its_schedule_needs() -> None:
    """On any graph, of each memory: with these capacities the schedule is valid, with a byte less it is not.

    Contributions to a tensor take its bytes before it is complete, shared or changed in place.
    """
    some_offloaded = 0
    for seed in range(150):
        random = Random(seed)
        graph = random_graph(random)
        runs = in_default_mode(range(len(graph.operations)))
        offloaded = {
            (lifetime.tensor, use.moment // 2): HOST
            for lifetime in find_lifetimes(graph, runs)
            for use in lifetime.device_uses
            if graph.tensors.kind[lifetime.tensor] != Kind.INPUT
            and lifetime.uses[0].changes == (not lifetime.persistent)
            and random.random() < 0.4
        }
        residency = Residency(runs, dict(offloaded))
        schedule = build_schedule(graph, residency)
        device, host = ResidencyTransfers(graph, LINKED.hierarchy, residency).curves.max(axis=1).tolist()
        machine = replace(LINKED, device_capacity=device, host_capacity=host)
        simulate(graph, schedule, machine=machine)
        for name, least in (("device_capacity", device), ("host_capacity", host)):
            if least:
                with pytest.raises(InvalidScheduleError, match=r"are allowed|too small"):
                    simulate(graph, schedule, machine=replace(machine, **{name: least - 1}))
        some_offloaded += host > 0
    assert some_offloaded > 50


def test_look_aheads_that_give_the_same_schedule_hide_no_other() -> None:
    """The fastest of all is taken, in whatever order they are listed and however often."""
    faster = 0
    for layers in (3, 4, 6):
        graph, machine = chain_of_weights(layers), Machine(links=Links(d2h=8.0, h2d=8.0))
        for room in (20, 30):
            first, both, repeated = (
                place_prefetches(graph, machine, room, all_offloaded(graph), look_aheads)
                for look_aheads in ((0.0,), (0.0, 4.0), (0.0, 0.0, 4.0))
            )
            assert first is not None
            assert both is not None
            assert repeated is not None
            assert repeated[1].time == both[1].time <= first[1].time
            faster += both[1].time < first[1].time
    assert faster
