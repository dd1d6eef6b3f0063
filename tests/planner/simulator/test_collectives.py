"""Coalesced collectives: small gathers, and scatters, that follow each other pay the latency once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine, Memory, Peers, Replicas
from memplan.graphs.transformations.sharding import sharded
from memplan.graphs.transformations.updates import ADAMW, SGD, with_updates
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.replay.instance import VariantTable
from memplan.planner.replay.ranking import starts_of, step_rows
from memplan.planner.replay.replay import UNASKED, figures_for, replay
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
from memplan.planner.simulator.clock import _ITERATIONS, Queue
from memplan.planner.simulator.collectives import joined_steps
from memplan.planner.simulator.simulate import simulate
from memplan.planner.simulator.timeline import timeline
from memplan.solvers.bounds.offload.network import network_bound
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from strategies import Case, random_case
from two_replays import disagreement

PEERS = Memory.PEERS
SAME = 1 + 1e-9

BIG, ONE, OTHER, A, G, H = range(6)
NETWORK = Peers(1.0, 8.0, ranks=2)
"""Of 2 ranks each receives half: 2 s for the small weights, 20 s for the big one, and 8 s a collective."""

COMPUTED = 1.0 + 2.0 + 0.5


def three_weights() -> Graph:
    """big, one, other ─F─▶ a ─B─▶ g, h ─U─▶ big, one, other"""
    draft = Draft("three")
    sizes = {"big": 40, "one": 4, "other": 4}
    weights = [draft.tensor(name, size, Kind.PARAMETER, spread=True) for name, size in sizes.items()]
    a = draft.tensor("a", 10)
    gradients = [draft.tensor(name, 4, Kind.PARAMETER_GRADIENT, spread=True) for name in "gh"]
    draft.operation("F", time=1.0, reads=weights, writes=[a])
    draft.operation("B", time=2.0, reads=[a], writes=gradients, phase=Phase.BACKWARD)
    draft.operation("U", time=0.5, reads=gradients, mutates=weights, phase=Phase.UPDATE, recompute=False)
    return replace(draft.graph(), machine=Machine(links=Links(peers=NETWORK)))


BACKWARD = [compute(0), delete(BIG), delete(ONE), delete(OTHER), compute(1)]
END = [delete(G), delete(H), compute(2), delete(G, PEERS), delete(H, PEERS)]
GATHERS, SCATTERS = [prefetch(BIG), prefetch(ONE), prefetch(OTHER)], [offload(G), offload(H)]


def schedule_of(gathers: Sequence[ScheduleStep], scatters: Sequence[ScheduleStep]) -> Schedule:
    return Schedule.of([*gathers, *BACKWARD, *scatters, *END], Initial(host=[BIG, ONE, OTHER]))


def passed(gathers: Sequence[ScheduleStep], scatters: Sequence[ScheduleStep]) -> float:
    """Return the seconds of all collectives: nothing runs beside them."""
    graph, schedule = three_weights(), schedule_of(gathers, scatters)
    assert disagreement(Case(graph, schedule, None, None)) is None
    return simulate(graph, schedule).figures.time - COMPUTED


def test_small_tensors_join_and_large_ones_do_not() -> None:
    """Each collective takes 8 s and its bytes. What comes before the big one ends before it."""
    big, one, other = GATHERS
    assert passed([big, one, other], SCATTERS) == (8 + 20 + 2 + 2) + (8 + 2 + 2)
    assert passed([one, other, big], SCATTERS) == (8 + 2 + 2) + (8 + 20) + (8 + 2 + 2)
    assert passed([one, big, other], SCATTERS) == (8 + 2) + (8 + 20 + 2) + (8 + 2 + 2)


def test_what_stands_between_parts_collectives() -> None:
    """Any other step does, even a delete, and a second gather of the same tensor, which waits for the
    first."""
    big, one, other = GATHERS
    assert passed(GATHERS, [offload(G), delete(A), offload(H)]) == (8 + 20 + 2 + 2) + 2 * (8 + 2)
    assert passed([big, one, one, other], SCATTERS) == (8 + 20 + 2) + (8 + 2 + 2) + (8 + 2 + 2)
    graph = three_weights()
    assert joined_steps(graph, schedule_of(GATHERS, SCATTERS), NETWORK) == {1: 0, 2: 0, 9: 8}
    assert joined_steps(graph, schedule_of(GATHERS, SCATTERS), replace(NETWORK, latency=0.0)) == {}


def test_all_of_a_collective_end_together() -> None:
    line = timeline(three_weights(), schedule_of(GATHERS, SCATTERS))
    gathers = line.end[:3].tolist()
    assert line.queue[:3].tolist() == [Queue.COMM] * 3
    assert gathers == [gathers[0]] * 3


@pytest.mark.parametrize("size", [0, 1, 7, 14, 15, 16, 17, 40])
def test_a_tensor_joins_if_its_bytes_take_less_than_the_latency(size: int) -> None:
    share = -(-size // 2)
    assert NETWORK.joins(float(size)) == (size - share < 8)
    assert NETWORK.seconds_added(size) == size - share + (0 if size - share < 8 else 8)
    assert NETWORK.joins(np.array([size], np.float64)).tolist() == [size - share < 8]


def test_a_collective_waits_for_the_memory_of_all_its_tensors() -> None:
    """a goes to the host in 10 s. One weight fits beside it, the other does not, and so neither comes."""
    draft = Draft("beside the host")
    one, other = (draft.tensor(name, 4, Kind.PARAMETER, spread=True) for name in ("one", "other"))
    a, b = draft.tensor("a", 10), draft.tensor("b", 1)
    draft.operation("K", time=1.0, writes=[a])
    draft.operation("F", time=1.0, reads=[one, other], writes=[b])
    draft.operation("B", time=2.0, reads=[a, b])
    graph, machine = draft.graph(), Machine(links=Links(1.0, 1.0, peers=NETWORK))
    gathers = [prefetch(one), prefetch(other)]
    steps = [compute(0), offload(a), delete(a), *gathers, compute(1), delete(one), delete(other)]
    schedule = Schedule.of([*steps, prefetch(a), compute(2)], Initial(host=[one, other]))
    shares, together = 2 + 2, 8 + 2 + 2
    assert check(graph, schedule, machine, shares + 10 + 4, 0) == 1 + 10 + together + 1 + 10 + 2
    assert check(graph, schedule, machine, shares + 10 + 8, 0) == 1 + together + 1 + 10 + 2


# ── random schedules ────────────────────────────────────────────────────────────────────────────────


def random_plan(random: Random) -> tuple[Graph, Schedule]:
    """Return a sharded chain and a schedule for it, with transfers moved about, on a slow network."""
    ranks = random.choice((2, 4, 8))
    plain = chain(random.randint(2, 7), seed=random.randrange(2**20))
    optimizer = random.choice((SGD, ADAMW))
    plain = with_updates(plain, optimizer=optimizer, when="in-backward", device_rate=2.0**20)
    sizes = plain.tensors.bytes[plain.tensors.kind == Kind.PARAMETER]
    rate = float(sizes.sum()) / random.choice((0.5, 4.0, 16.0))
    latency = float(np.median(sizes)) / rate
    network = Peers(rate, random.choice((0.0, 1.0, 4.0)) * latency, ranks=ranks)
    if random.random() < 0.5:
        between = Replicas(rate / 4, random.choice((0.0, 4.0)) * latency, count=random.choice((2, 3)))
        network = replace(network, replicas=between)
    graph = sharded(plain, network)
    runs = [(o, 0) for o in range(len(graph.operations))]
    uses = [
        (lifetime.tensor, position_of(use.moment))
        for lifetime in find_lifetimes(graph, runs)
        for use in lifetime.uses
        if lifetime.spread and (lifetime.persistent or use is lifetime.uses[-1])
    ]
    chosen = dict.fromkeys(random.sample(uses, random.randint(len(uses) // 2, len(uses))), int(PEERS))
    schedule = build_schedule(graph, Residency(runs, chosen))
    steps = list(schedule)
    for _ in range(random.randrange(24)):
        moved = list(steps)
        step = moved.pop(
            random.choice([place for place, each in enumerate(moved) if each.verb > Verb.DELETE])
        )
        like = [place for place, each in enumerate(moved) if each.verb == step.verb]
        moved.insert(random.choice(like) + random.randint(0, 1) if like else 0, step)
        try:
            simulate(graph, Schedule.of(moved, schedule.initial))
        except InvalidScheduleError:
            continue
        steps = moved
    return graph, Schedule.of(steps, schedule.initial)


def check(graph: Graph, schedule: Schedule, machine: Machine, budget: int, seed: int) -> float:
    """Check that the three replays agree on a schedule that holds, and no bound is above; its seconds."""
    assert disagreement(Case(graph, schedule, budget, machine)) is None, seed
    time = simulate(graph, schedule, budget=budget, machine=machine).figures.time
    variants = VariantTable(graph)
    instance = variants.instance(machine, budget)
    result, rows = figures_for(instance), step_rows(variants, schedule)
    replay(instance, rows, starts_of(graph, schedule), result, UNASKED, _ITERATIONS)
    assert result[0] == pytest.approx(time, rel=1e-12), seed
    assert network_bound(graph, machine, budget) <= time * SAME, seed
    return time


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(8))
def test_three_replays_and_the_bounds_agree(batch: int) -> None:
    """The simulator, the reference and the compiled replay, in all memory and in the least."""
    joined = 0
    for seed in range(60 * batch, 60 * batch + 60):
        random = Random(seed)
        graph, schedule = random_plan(random)
        machine = graph.machine
        assert machine is not None
        figures = simulate(graph, schedule).figures
        check(graph, schedule, machine, figures.peak, seed)
        time = check(graph, schedule, machine, figures.least_budget, seed)
        if seed % 20 == 0:
            bound = offload_bound(graph, machine, figures.least_budget, 2.0, order="any").seconds
            assert bound <= time * SAME, seed
        joined += bool(joined_steps(graph, schedule, machine.links.peers))
    assert joined > 20


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(4))
def test_they_agree_beside_other_links(batch: int) -> None:
    """Cases whose tensors also go to the host and to disks, on a network that takes long to begin."""
    joined = 0
    for seed in range(2000 * batch, 2000 * batch + 2000):
        case = random_case(Random(seed), peers=True, shared=seed % 3 == 0)
        machine = case.machine
        if machine is None or (peers := machine.links.peers) is None:
            continue
        peers = replace(peers, latency=16.0, measured=())
        each = machine.links
        links = Links(each.d2h, each.h2d, each.disk_read, each.disk_write, peers=peers)
        machine = replace(machine, links=links)
        if not joined_steps(case.graph, case.schedule, peers):
            continue
        assert disagreement(case._replace(machine=machine)) is None, seed
        try:
            simulate(case.graph, case.schedule, budget=case.budget, machine=machine)
        except InvalidScheduleError:
            continue
        check(case.graph, case.schedule, machine, 2**60 if case.budget is None else case.budget, seed)
        joined += 1
    assert joined > 10
