"""Bounds of sharded training: no schedule that the simulator accepts is faster."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Mode
from memplan.graphs.machine import Links, Machine, Peers
from memplan.graphs.transformations.sharding import sharded
from memplan.graphs.transformations.updates import ADAMW, SGD, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.simulator.simulate import Figures
from memplan.solvers.bounds.offload.network import _largest, network_bound
from memplan.solvers.bounds.offload.offload_bound import moves, offload_bound
from memplan.solvers.offloading.sharded.fsdp import policy_schedules
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from strategies import random_case
from two_replays import judged

SAME = 1 + 1e-9


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("batch", range(4))
def test_no_random_schedule_is_faster(batch: int, shared: bool) -> None:
    above = passing = 0
    for seed in range(200 * batch, 200 * batch + 200):
        case = random_case(Random(seed), peers=True, shared=shared)
        found, machine = judged(case), case.machine
        if not isinstance(found, Figures) or machine is None or not moves(machine):
            continue
        limit = found.peak if case.budget is None else case.budget
        network = network_bound(case.graph, machine, limit)
        assert network <= found.time * SAME, f"random_case(Random({seed}), peers=True, shared={shared})"
        bound = offload_bound(case.graph, machine, limit, 2.0, order="any").seconds
        assert network <= bound <= found.time * SAME, f"seed {seed}: {bound} > {found.time}"
        above += bound > 0.5 * found.time
        passing += network > 0
    assert above > 20
    assert passing > 1


@pytest.mark.parametrize(("seed", "shared"), [(60, True), (1484, True), (2312, False)])
def test_tensors_that_no_link_brings_down_may_lie_there(seed: int, shared: bool) -> None:
    """A machine without a network between ranks, and two on which weights only come from the host."""
    case = random_case(Random(seed), peers=True, shared=shared)
    found, machine = judged(case), case.machine
    assert isinstance(found, Figures)
    assert machine is not None
    assert not (machine.links.reach_host and machine.links.peers)
    limit = found.peak if case.budget is None else case.budget
    assert offload_bound(case.graph, machine, limit, 2.0, order="any").seconds <= found.time * SAME


def layers(rate: float) -> Graph:
    graph = with_updates(chain(6, uniform=True), optimizer=SGD, when="in-backward", device_rate=2.0**40)
    graph = sharded(graph, Peers(rate, ranks=8))
    return replace(graph, machine=Machine(links=Links(peers=Peers(rate, ranks=8))))


def test_what_does_not_stay_is_gathered_twice() -> None:
    """Six layers of 1 MiB and tensors of 1 MiB: B of the last needs four of them, and its own weight. The
    slower network is all the time there is."""
    graph, mib = layers(2.0**18), 2**20
    machine = graph.machine
    assert machine is not None
    one = 7 / 8 * mib / 2.0**18
    shares = 6 * mib // 8
    around_the_loss = sum(graph.seconds(graph.operation_index[name]) for name in ("F6", "loss", "B6"))
    roomy = network_bound(graph, machine, 100 * mib)
    assert roomy == pytest.approx(12 * one + around_the_loss)
    tight = [network_bound(graph, machine, shares + int(mib * k)) for k in (14, 10, 8, 6)]
    assert tight == sorted(tight)
    assert tight[-1] > roomy
    assert tight[-1] <= (18 * one + around_the_loss) * SAME


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rate", [2.0**16, 2.0**18, 2.0**20, 2.0**21, 2.0**22])
def test_with_memory_for_all_weights_the_bound_is_the_optimum(rate: float) -> None:
    """Also where the network is done in the time of a few layers: then their weights alone count."""
    graph = layers(rate)
    assert graph.machine is not None
    bound = network_bound(graph, graph.machine, 2**50)
    problem = Problem(graph, 2**50)
    found = registry.solve("joint", problem, settings={"moves": "100"}, bound_seconds=0)
    assert found.figures.time == pytest.approx(bound, rel=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rate", [2.0**16, 2.0**18, 2.0**20, 2.0**22])
def test_fsdp2_policies_are_not_faster(rate: float) -> None:
    graph = layers(rate)
    machine = graph.machine
    assert machine is not None
    found = list(policy_schedules(Problem(graph, 2**50)))
    assert len(found) == 6
    for policy, _schedule, figures in found:
        bound = offload_bound(graph, machine, figures.least_budget, 2.0, order="any").seconds
        assert bound <= figures.time * SAME, str(policy)
        assert bound > 0.5 * figures.time, str(policy)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_links_that_take_turns_raise_the_bound_and_the_plan(seed: int) -> None:
    """Nothing is recomputed, and optimizer states come and go in one pass: with turns that is one queue."""
    graph = with_updates(chain(6, seed=seed), optimizer=ADAMW, when="in-backward", device_rate=2.0**30)
    operations = graph.operations
    graph = replace(graph, operations=replace(operations, recompute=operations.recompute & False, modes={}))
    rate = float(graph.tensors.bytes.max()) / 4
    alone = Machine(links=Links(rate, rate))
    shared = replace(alone, shared=(("d2h", "h2d"),))
    least = minimum_memory(graph, alone)
    budget = least + (baseline(graph).peak - least) // 4
    bounds = [offload_bound(graph, machine, budget, 5.0).seconds for machine in (alone, shared)]
    times = [
        registry.solve(
            "joint", Problem(graph, budget, machine), settings={"moves": "20"}, bound_seconds=0
        ).figures.time
        for machine in (alone, shared)
    ]
    assert bounds[0] <= bounds[1] * SAME
    assert times[0] < times[1]
    assert all(bound <= time * SAME for bound, time in zip(bounds, times, strict=True))
    assert bounds[1] > bounds[0] * 1.01


def test_an_operation_needs_the_bytes_of_its_smallest_variant() -> None:
    draft = Draft("variants")
    x, y = draft.tensor("x", 1), draft.tensor("y", 2)
    draft.operation("a", time=1, writes=[x])
    draft.operation("b", time=1, reads=[x], writes=[y], workspace=100, modes=[Mode("slow", 9, 4, (y,))])
    graph = draft.graph([y])
    assert list(_largest(graph, graph.tensors.bytes.tolist())) == [(1, 1 + 2 + 4), (0, 1)]
