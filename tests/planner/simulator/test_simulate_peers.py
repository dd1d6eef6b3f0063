"""Sharded training in the simulator: weights gathered, gradients scattered, updates on shares.

The second replay agrees on random cases of it (test_simulate.py), the compiled one too (test_replay.py).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Link, Links, Machine, Memory, Peers, Replicas
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.errors import RULES, InvalidScheduleError
from memplan.planner.residency.lifetimes import find_lifetimes, position_of
from memplan.planner.residency.prefetch_placement import build_schedule
from memplan.planner.residency.residency import Residency
from memplan.planner.schedule.schedule import (
    Initial,
    Schedule,
    ScheduleStep,
    Verb,
    compute,
    delete,
    offload,
    prefetch,
)
from memplan.planner.simulator.clock import Queue
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.planner.simulator.timeline import timeline

DEVICE, PEERS, DISK = Memory.DEVICE, Memory.PEERS, Memory.DISK
X, W, M, A, DW = range(5)
NETWORK = Machine(links=Links(peers=Peers(87.0, 0.5, ranks=8)))
AWAY = Initial(host=[W, M])


def one_layer() -> Graph:
    """x, w ─F─▶ a ─B─▶ dw ─U─▶ w, m: 100 bytes of weight are 13 bytes on each of 8 ranks."""
    draft = Draft("layer")
    x = draft.tensor("x", 4, Kind.INPUT)
    w = draft.tensor("w", 100, Kind.PARAMETER, spread=True)
    m = draft.tensor("m", 200, Kind.OPTIMIZER_STATE, spread=True)
    a = draft.tensor("a", 10)
    dw = draft.tensor("dw", 100, Kind.PARAMETER_GRADIENT, spread=True)
    draft.operation("F", time=1.0, reads=[x, w], writes=[a])
    draft.operation("B", time=2.0, reads=[a], writes=[dw], phase=Phase.BACKWARD)
    draft.operation("U", time=0.25, reads=[dw], mutates=[w, m], phase=Phase.UPDATE, recompute=False)
    return draft.graph()


STEPS = [
    prefetch(W),
    compute(0),
    delete(W),
    compute(1),
    offload(DW),
    delete(DW),
    delete(A),
    compute(2),
    delete(DW, PEERS),
]


def test_weights_are_gathered_and_gradients_scattered() -> None:
    """Each device receives all but its share, 87 bytes: 1.5 s for each of the two. Nothing overlaps: 1.5 + 1
    + 2 + 1.5 + 0.25. While B runs: x, the shares of w and m, a, dw; and w if it is not freed."""
    graph, least = one_layer(), 4 + 13 + 25 + 10 + 100 + 13
    figures = simulate(graph, Schedule.of(STEPS, AWAY), machine=NETWORK, budget=least).figures
    assert figures == Figures(6.25, least, least, 0, 0)
    kept = Schedule.of([step for step in STEPS if step != delete(W)] + [delete(W)], AWAY)
    assert simulate(graph, kept, machine=NETWORK).figures.least_budget == least + 100


def test_the_network_is_one_queue() -> None:
    line = timeline(one_layer(), Schedule.of(STEPS, AWAY), machine=NETWORK)
    assert [Queue(queue) for queue in line.queue.tolist() if queue >= Queue.D2H] == [Queue.COMM] * 2


FAULTS = {
    "scatter-a-weight": [prefetch(W), offload(W)],
    "gather-a-gradient": [*STEPS[:5], delete(DW), prefetch(DW)],
    "delete-a-weight's-shares": [prefetch(W), delete(W, PEERS)],
    "to-the-disk": [offload(W, DISK)],
}


@pytest.mark.parametrize("steps", FAULTS.values(), ids=FAULTS)
def test_what_ranks_would_lose_is_refused(steps: list[ScheduleStep]) -> None:
    with pytest.raises(InvalidScheduleError) as refusal:
        simulate(one_layer(), Schedule.of(steps, AWAY), machine=NETWORK)
    assert (refusal.value.rule, refusal.value.step) == ("peers", len(steps) - 1)
    assert str(refusal.value).count("\n") == 0
    assert RULES["peers"] in str(refusal.value)


def test_shares_are_where_they_start() -> None:
    with pytest.raises(
        InvalidScheduleError, match=r"w is spread over the ranks: it starts on the peers \[init"
    ):
        simulate(one_layer(), Schedule.of(STEPS), machine=NETWORK)


def test_without_a_network_nothing_is_gathered() -> None:
    with pytest.raises(InvalidScheduleError, match="the machine has no link peers"):
        simulate(one_layer(), Schedule.of(STEPS, AWAY), machine=Machine(links=Links(1.0, 1.0)))


def test_an_update_uses_shares() -> None:
    """It does not see the gradient on the device, which is this rank's alone."""
    steps = [step for step in STEPS if step.verb != Verb.OFFLOAD and step != delete(DW)][:-1]
    with pytest.raises(InvalidScheduleError, match=r"dw is not on the peers \[reads-present"):
        simulate(one_layer(), Schedule.of(steps, AWAY), machine=NETWORK)


@pytest.mark.parametrize(
    ("size", "ranks", "share"), [(100, 8, 13), (96, 8, 12), (1, 8, 1), (0, 4, 0), (7, 1, 7)]
)
def test_a_copy_on_the_peers_takes_its_share(size: int, ranks: int, share: int) -> None:
    peers = Peers(2.0, 0.25, ranks=ranks)
    assert peers.share_of(size) == share
    assert peers.seconds(float(size)) == 0.25 + (size - share) / 2.0
    assert peers.total_seconds([size, size]) == 2 * peers.seconds(float(size))


@pytest.mark.parametrize(
    ("size", "ranks", "count", "passed"), [(100, 8, 2, 13), (96, 8, 3, 16), (7, 1, 4, 10.5), (0, 4, 2, 0)]
)
def test_a_scatter_ends_when_its_shares_are_summed_up_over_replicas(
    size: int, ranks: int, count: int, passed: float
) -> None:
    """passed: bytes of a ring all-reduce, 2 (r − 1) / r of a share."""
    alone = Peers(2.0, 0.25, ranks=ranks)
    peers = replace(alone, replicas=Replicas(0.5, 1.0, count=count))
    assert alone.scatters == alone
    assert peers.seconds(float(size)) == alone.seconds(float(size))
    seconds = alone.seconds(float(size)) + 1.0 + passed / 0.5
    assert peers.scatters.seconds(float(size)) == pytest.approx(seconds)
    assert peers.scatters.total_seconds([size, size]) == pytest.approx(2 * seconds)
    assert peers.scatters.joins(float(size)) == (seconds < 2 * (0.25 + 1.0))
    assert peers.scatters.seconds_added(size) == pytest.approx(
        seconds - 1.25 * peers.scatters.joins(float(size))
    )


def test_replicas_prolong_scatters_alone() -> None:
    peers = Peers(87.0, 0.5, ranks=8)
    between = Replicas(6.5, 2.0, count=2)
    graph = one_layer()
    times: list[float] = []
    for network in (peers, replace(peers, replicas=between)):
        machine = Machine(links=Links(peers=network))
        times.append(simulate(graph, Schedule.of(STEPS, AWAY), machine=machine).figures.time)
    assert times[1] - times[0] == pytest.approx(2.0 + 13 / 6.5)


def test_the_minimum_memory_counts_shares() -> None:
    """B: x, the shares of w and m, a, dw; no schedule takes less, and this one takes that, but for the share
    of dw that its scatter makes."""
    graph = replace(one_layer(), machine=NETWORK)
    assert minimum_memory(graph) == 4 + 13 + 25 + 10 + 100
    assert baseline(graph).peak >= minimum_memory(graph)


def spread_chain(seed: int, ranks: int) -> Graph:
    """A chain whose weights never change, with sizes that the ranks divide."""
    graph = chain(4, seed=seed)
    kinds = graph.tensors.kind
    spread = frozenset(
        np.flatnonzero((kinds == Kind.PARAMETER) | (kinds == Kind.PARAMETER_GRADIENT)).tolist()
    )
    return replace(graph, tensors=replace(graph.tensors, bytes=graph.tensors.bytes * ranks, spread=spread))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("seed", range(40))
def test_peers_are_a_host_with_one_link_both_ways(seed: int, ranks: int) -> None:
    """The same decisions: the same seconds, and on the device the shares come on top, to the byte."""
    random, graph = Random(seed), spread_chain(seed, ranks)
    rate = float(random.choice((64, 256, 1024, 4096)) * ranks)
    network = Machine(links=Links(peers=Peers(rate, 0.5, ranks=ranks)))
    link = Link(rate * ranks / (ranks - 1), 0.5)
    host = Machine(links=Links(link, link), shared=(("d2h", "h2d"),))
    graph = replace(graph, machine=network)
    plain = replace(graph, tensors=replace(graph.tensors, spread=frozenset()), machine=host)
    runs = [(o, 0) for o in range(len(graph.operations))]
    uses = [
        (lifetime.tensor, position_of(use.moment))
        for lifetime in find_lifetimes(graph, runs)
        for use in lifetime.uses
        if lifetime.spread and (lifetime.persistent or use is lifetime.uses[-1])
    ]
    chosen = dict.fromkeys(random.sample(uses, random.randint(1, len(uses))), int(PEERS))
    sharded, offloaded = (build_schedule(each, Residency(runs, chosen)) for each in (graph, plain))
    assert slots_of(sharded) == slots_of(offloaded)
    found, expected = simulate(graph, sharded), simulate(plain, sharded)
    assert found.figures.time == pytest.approx(expected.figures.time, rel=1e-9)
    assert found.figures.least_budget == least_bytes(graph, sharded, shares=True)
    assert expected.figures.least_budget == least_bytes(graph, sharded, shares=False)
    # What else leaves is deleted before a scatter, whose share takes memory.
    offloaded = replace(offloaded, initial=sharded.initial)
    assert found.figures.least_budget <= least_bytes(graph, offloaded, shares=True)


def slots_of(schedule: Schedule) -> list[list[ScheduleStep]]:
    """The steps between one run and the next, sorted."""
    slots: list[list[ScheduleStep]] = [[]]
    for step in schedule:
        if step.verb == Verb.COMPUTE:
            slots += [[step], []]
        else:
            slots[-1].append(step)
    return [sorted(slot) for slot in slots]


def least_bytes(graph: Graph, schedule: Schedule, *, shares: bool) -> int:
    """The most that is on the device if deletes are immediate. shares: copies below it take their share
    there."""
    sizes, there = graph.tensors.bytes.tolist(), set[tuple[int, int]]()
    ranks = graph.machine.links.peers.ranks if graph.machine and graph.machine.links.peers else 1
    for x in np.flatnonzero(graph.resident).tolist():
        there |= {(x, memory) for memory in schedule.initial.memories(x)}

    def count() -> int:
        return sum(
            size if memory == DEVICE else shares * -(-size // ranks)
            for x, memory in there
            for size in [sizes[x]]
        )

    most = count()
    for verb, target, where in schedule.rows():
        workspace = 0
        if verb == Verb.COMPUTE:
            there |= {(x, int(DEVICE)) for x in graph.operations.writes[target].tolist()}
            workspace = graph.workspace(target)
        elif verb == Verb.DELETE:
            there.remove((target, where))
        else:
            there.add((target, where))
        most = max(most, count() + workspace)
    return most


@pytest.mark.parametrize("seed", range(10))
def test_a_network_that_takes_no_time_costs_none(seed: int) -> None:
    graph = spread_chain(seed, 1)
    endless = replace(graph, machine=Machine(links=Links(peers=Peers(inf, ranks=1))))
    plain = replace(graph, tensors=replace(graph.tensors, spread=frozenset()))
    assert baseline(endless).time == pytest.approx(baseline(plain).time, rel=1e-12)
