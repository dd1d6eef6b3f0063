"""Shares of optimizer states on the host, in graphs of sharded training: all replays and the bound agree."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Link, Links, Machine, Memory, Peers, Tier, Updates
from memplan.graphs.machines.nodes import part_of_node
from memplan.graphs.transformations.sharding import rank_bytes, sharded
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.replay.instance import VariantTable
from memplan.planner.replay.ranking import starts_of, step_rows
from memplan.planner.replay.replay import UNASKED, figures_for, replay
from memplan.planner.residency.lifetimes import find_lifetimes, position_of
from memplan.planner.residency.prefetch_placement import build_schedule
from memplan.planner.residency.residency import Residency
from memplan.planner.simulator.clock import _ITERATIONS
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from strategies import Case
from two_replays import disagreement

RATE = 2.0**20


def trained(layers: int, seed: int, ranks: int, link: float, weight: int = 1) -> Graph:
    """A chain with AdamW as one of some ranks trains it, next to a host. weight: factor on weights' bytes."""
    peers = Peers(RATE, 2.0**-6, ranks=ranks)
    links = Links(Link(link, 2.0**-7), Link(link, 2.0**-7), RATE, RATE, peers=peers)
    graph = chain(layers, seed=seed)
    heavy = np.isin(graph.tensors.kind, (Kind.PARAMETER, Kind.PARAMETER_GRADIENT))
    sizes = np.where(heavy, weight * graph.tensors.bytes, graph.tensors.bytes)
    graph = replace(graph, tensors=replace(graph.tensors, bytes=sizes))
    graph = with_updates(graph, optimizer=ADAMW, when="in-backward", device_rate=RATE)
    return replace(sharded(graph, peers), machine=Machine(links=links))


@pytest.mark.scripts
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([1, 2, 3, 8]), st.sampled_from([0.25, 4.0]))
def test_replays_and_bound_agree_on_random_decisions(
    seed: int, layers: int, ranks: int, speed: float
) -> None:
    """Weights leave, gradients are scattered, states go to the host or the disk after some of their uses."""
    random, graph = Random(seed), trained(layers, seed % 100, ranks, speed * RATE)
    machine = graph.machine
    assert machine is not None
    runs = [(o, 0) for o in range(len(graph.operations))]
    chosen: dict[tuple[int, int], int] = {}
    for lifetime in find_lifetimes(graph, runs):
        if graph.tensors.kind[lifetime.tensor] == Kind.INPUT:
            continue
        for use in lifetime.uses:
            if random.random() < 0.5 and (lifetime.persistent or not lifetime.spread):
                deepest = Memory.PEERS if lifetime.spread else random.choice((Memory.HOST, Memory.DISK))
                chosen[lifetime.tensor, position_of(use.moment)] = int(deepest)
    schedule = build_schedule(graph, Residency(runs, chosen))
    assert disagreement(Case(graph, schedule, None, machine)) is None
    figures = simulate(graph, schedule, machine=machine).figures
    table = VariantTable(graph)
    instance = table.instance(machine, figures.peak)
    result = figures_for(instance)
    replay(instance, step_rows(table, schedule), starts_of(graph, schedule), result, UNASKED, _ITERATIONS)
    assert result[0] == pytest.approx(figures.time, rel=1e-6)
    assert result[1] == 0.0
    limit = figures.least_budget
    assert minimum_memory(graph, machine) <= limit
    bound = offload_bound(graph, machine, limit, 2.0, order="any").seconds
    assert bound <= figures.time * (1 + 1e-9)


@pytest.mark.scripts
def test_with_a_host_plans_take_less_than_weights_and_states() -> None:
    """States are most of what a rank holds, and only an update needs them."""
    graph = trained(8, 3, 2, 4 * RATE, weight=64)
    assert graph.machine is not None
    alone = replace(graph.machine, links=Links(peers=graph.machine.links.peers))
    without = minimum_memory(graph, alone)
    least = minimum_memory(graph, graph.machine)
    assert least < rank_bytes(graph) < without
    budget = int(0.95 * rank_bytes(graph))
    found = registry.solve("joint", Problem(graph, budget), 2.0)
    assert found.figures.peak <= budget
    states = set(np.flatnonzero(graph.tensors.kind == Kind.OPTIMIZER_STATE).tolist())
    assert states & found.schedule.initial.on(Memory.HOST)
    assert found.figures.host_peak <= sum(int(graph.tensors.bytes[x]) for x in range(len(graph.tensors)))


def test_without_a_host_states_stay() -> None:
    graph = trained(3, 1, 4, RATE)
    assert graph.machine is not None
    alone = replace(graph, machine=Machine(links=Links(peers=graph.machine.links.peers)))
    assert minimum_memory(alone) >= rank_bytes(alone)
    assert baseline(alone).peak >= minimum_memory(alone)


def test_ranks_of_a_node_divide_what_is_the_nodes() -> None:
    """Each device has its own links; host memory, the CPU and what is below belong to the node."""
    node = Machine(
        device_capacity=80,
        host_capacity=1001,
        pinned=500,
        disk_capacity=4000,
        links=Links(Link(50.0, 1.0), Link(40.0), Link(8.0, 1.0), Link(6.0)),
        updates=Updates(100.0, 16.0, 700.0, 64.0),
        deeper=(Tier("tape", 800, Link(4.0), None),),
    )
    own = part_of_node(node, 4)
    assert part_of_node(node, 1) == node
    assert (own.device_capacity, own.host_capacity, own.pinned, own.disk_capacity) == (80, 250, 125, 1000)
    assert (own.links.d2h, own.links.h2d) == (node.links.d2h, node.links.h2d)
    assert (own.links.disk_read, own.links.disk_write) == (Link(2.0, 4.0), Link(1.5))
    assert own.updates == Updates(100.0, 4.0, 700.0, 16.0)
    assert own.deeper == (Tier("tape", 200, Link(1.0), None),)
