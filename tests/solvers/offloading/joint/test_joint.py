"""The joint search: any set of dropped tensors makes runs that hold; never slower than its start."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
from direct_access import with_direct_gradients
from joint_graphs import GRAPHS, LINKED, MiB, trained
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Phase
from memplan.graphs.machine import Link, Links, Machine, Memory, Tier
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.schedule.schedule import Verb
from memplan.planner.schedule.sequence import in_default_mode, prune
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.links import worth_moving
from memplan.solvers.offloading.joint import joint
from memplan.solvers.offloading.joint.disk_spill import spill
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.offloading.joint.slots import Slots
from memplan.solvers.offloading.joint.start import host_modes
from memplan.solvers.offloading.joint.state import State
from memplan.solvers.offloading.joint.timeline import ABSENT
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem, Status
from memplan.solvers.registry import run as registry
from not_none import not_none


def test_where_gradients_find_no_room_they_are_written_to_the_host() -> None:
    """At the floor, which is lower for that: no schedule without holds there."""
    graph = with_direct_gradients(trained(3, 1), 3.0 * MiB)
    min_memory = minimum_memory(graph, LINKED)
    assert min_memory < minimum_memory(trained(3, 1), LINKED)
    found = registry.solve("joint", Problem(graph, min_memory, LINKED), 1.0, bound_seconds=0.5)
    assert found.figures.peak == min_memory
    assert found.figures.time >= not_none(found.lower_bound)
    runs = [run for verb, *run in found.schedule.rows() if verb == Verb.COMPUTE]
    assert any(graph.made_on_host(*run) and not graph.on_host(*run) for run in runs)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", GRAPHS)
def test_whatever_is_dropped_the_runs_hold(name: str, seed: int) -> None:
    graph, random = GRAPHS[name], Random(seed)
    drops, hosts = Drops(graph), host_modes(graph)
    dropped = {x for x in drops.saved if random.random() < 0.6}
    slots = Slots(drops, drops.runs)
    state = State(graph, LINKED, 2**50, slots.runs, all_offloaded=random.random() < 0.5)
    state.switch(dict.fromkeys(slots.recomputed(dropped), 0))
    state.switch(
        {p: hosts[o] for p, (o, _m) in enumerate(state.runs) if o in hosts and random.random() < 0.5}
    )
    outcome = state.evaluate(1.0)
    figures = simulate(graph, state.schedule(outcome), machine=LINKED).figures
    assert figures.time == pytest.approx(outcome.seconds, rel=1e-6)
    runs = [run for run in state.runs if run[1] != ABSENT]
    assert prune(graph, runs) == runs, "nothing is made again for nobody"
    assert {operation for operation, _mode in runs} == set(range(len(graph.operations)))


def test_what_is_dropped_is_not_there_at_the_loss() -> None:
    graph = chain(8, uniform=True)
    drops = Drops(graph)
    inside = drops.saved[:8]
    slots = Slots(drops, drops.runs, [set(inside)])
    state = State(graph, LINKED, 2**50, slots.runs)
    kept = state.demand
    assert {graph.tensors.name[x] for x in inside} == {f"a{i}" for i in range(1, 9)}, "boundaries come last"
    state.switch(dict.fromkeys(slots.recomputed(set(inside)), 0))
    assert kept == baseline(graph).peak
    assert kept - state.demand == 7 * MiB, "one block's own tensor is there at a time"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", GRAPHS)
def test_within_the_budget_and_above_the_bound(name: str) -> None:
    graph = GRAPHS[name]
    low, high = minimum_memory(graph, LINKED), baseline(graph).peak
    times: list[float] = []
    for share in (0.8, 0.5):
        budget = low + int((high - low) * share)
        solution = registry.solve(
            "joint", Problem(graph, budget, LINKED), 1.0, {"seed": "1"}, bound_seconds=2.0
        )
        assert solution.figures.peak <= budget
        assert solution.lower_bound is not None
        times.append(solution.figures.time / solution.lower_bound)
    assert all(ratio >= 1 - 1e-9 for ratio in times)


def test_never_slower_than_its_start() -> None:
    graph = GRAPHS["trained"]
    problem = Problem(graph, minimum_memory(graph, LINKED) * 2, LINKED)
    start = registry.solve("zero-infinity", problem, bound_seconds=0.0)
    answer = joint.improved(problem, Options(0.5), [(start.schedule, start.figures.time)])
    assert (
        simulate(graph, answer.schedule, budget=problem.budget, machine=LINKED).figures.time
        <= start.figures.time
    )


def test_cancelled_it_gives_its_best_so_far() -> None:
    graph = GRAPHS["trained"]
    problem = Problem(graph, minimum_memory(graph, LINKED) * 2, LINKED)
    answer = joint.solve(problem, replace(Options(None), cancelled=lambda: True))
    assert answer.status == Status.FEASIBLE
    simulate(graph, answer.schedule, budget=problem.budget, machine=LINKED)


def test_the_same_seed_gives_the_same_answer() -> None:
    graph = GRAPHS["after"]
    problem = Problem(graph, minimum_memory(graph, LINKED) * 3 // 2, LINKED)
    options = Options(None, joint.Settings(moves=20))
    first, second = (joint.solve(problem, options).schedule for _ in range(2))
    assert list(first) == list(second)


def test_refusals() -> None:
    graph = GRAPHS["chain"]
    with pytest.raises(NotAcceptedError, match="joint needs a machine with links d2h and h2d"):
        registry.solve("joint", Problem(graph, 100 * MiB))
    min_memory = minimum_memory(graph, LINKED)
    with pytest.raises(InfeasibleError, match="the smallest budget found by joint"):
        registry.solve("joint", Problem(graph, min_memory - 1, LINKED))


@pytest.mark.scripts
def test_what_the_host_cannot_hold_goes_to_the_disk() -> None:
    graph = GRAPHS["trained"]
    budget = minimum_memory(graph, LINKED) * 3 // 2
    roomy = registry.solve("joint", Problem(graph, budget, LINKED), 1.0, bound_seconds=0.0).figures
    disks = replace(LINKED.links, disk_read=2.0 * MiB, disk_write=2.0 * MiB)
    small = Machine(host_capacity=roomy.host_peak // 2, disk_capacity=2**40, links=disks)
    figures = registry.solve("joint", Problem(graph, budget, small), 1.0, bound_seconds=0.0).figures
    assert figures.host_peak <= roomy.host_peak // 2
    assert figures.disk_peak > 0


@pytest.mark.scripts
def test_what_the_disk_cannot_hold_goes_deeper() -> None:
    """Through host and disk to the memory below, as few as needed: fewer where the disk is larger."""
    graph, counts = GRAPHS["trained"], list[int]()
    disks = replace(LINKED.links, disk_read=2.0 * MiB, disk_write=2.0 * MiB)
    archive = Tier("archive", None, Link(2.0 * MiB), Link(2.0 * MiB))
    for disk in (17 * MiB, 20 * MiB):
        machine = Machine(host_capacity=12 * MiB, disk_capacity=disk, links=disks, deeper=(archive,))
        state = State(
            graph, machine, 20 * MiB, in_default_mode(range(len(graph.operations))), all_offloaded=True
        )
        spill(state)
        assert state.peaks(1.0)[Memory.DISK] <= disk
        roomy, schedule = replace(machine, host_capacity=None), state.schedule(state.evaluate(1.0))
        found = simulate(graph, schedule, budget=20 * MiB, machine=roomy).figures
        assert found.disk_peak <= disk
        assert found.deeper_peaks[0] > 0
        counts.append(sum(to == 3 for to in state.offloaded.values()))
    assert counts[0] > counts[1]


def many_and_few() -> Graph:
    """Eight small activations, made first and read last, and two that each are as large as these together."""
    draft = Draft("many-and-few")
    sizes = [*[MiB] * 8, 8 * MiB, 8 * MiB]
    made = [draft.tensor(f"x{k}", size) for k, size in enumerate(sizes)]
    for k, x in enumerate(made):
        draft.operation(f"F{k}", time=1.0, writes=[x], recompute=False)
    draft.operation("loss", time=200.0, writes=[draft.tensor("loss", MiB)], phase=Phase.LOSS, recompute=False)
    for k, x in reversed(list(enumerate(made))):
        draft.operation(f"B{k}", time=1.0, reads=[x], phase=Phase.BACKWARD)
    return draft.graph()


def moved(graph: Graph, machine: Machine, budget: int) -> set[int]:
    """The sizes of what leaves, in MiB."""
    answer = joint.solve(Problem(graph, budget, machine), Options())
    out = answer.schedule.targets[answer.schedule.verbs == Verb.OFFLOAD]
    return {int(size) // MiB for size in graph.tensors.bytes[out]}


def test_a_tensor_that_latency_makes_dear_stays_where_another_can_go() -> None:
    """2 s of latency stand for 4 MiB of the 2 MiB/s: what is smaller is not moved, unless all must go.

    All copies are hidden behind the loss; without latencies the longest intervals are taken.
    """
    graph, rate = many_and_few(), 2.0 * MiB
    slow = Machine(links=Links(Link(rate, 2.0), Link(rate, 2.0)))
    assert worth_moving(slow) == 4 * MiB
    assert worth_moving(Machine(links=Links(rate, rate))) == worth_moving(Machine()) == 1
    assert worth_moving(Machine(links=Links(inf, Link(inf, 1.0)))) == 1
    assert worth_moving(Machine(links=Links(Link(MiB, 1.0), Link(3 * MiB, 3.0)))) == 3 * MiB
    assert moved(graph, Machine(links=Links(rate, rate)), 17 * MiB) == {1}
    assert moved(graph, slow, 17 * MiB) == {8}
    assert moved(graph, slow, 8 * MiB) == {8, 1}, "nothing else meets the budget"


@pytest.mark.scripts
def test_without_phases_what_waits_longest_is_made_again() -> None:
    """A trace whose kernels are all called forward: recomputation is found all the same."""
    graph = GRAPHS["chain"]
    forward = replace(graph.operations, phase=np.full_like(graph.operations.phase, Phase.FORWARD))
    untold = replace(graph, operations=forward)
    slow = Machine(links=Links(d2h=0.01 * MiB, h2d=0.01 * MiB))
    min_memory, peak = minimum_memory(graph), baseline(graph).peak
    times = [
        registry.solve(
            "joint", Problem(each, (min_memory + peak) // 2, slow), 2.0, bound_seconds=0.0
        ).figures.time
        for each in (graph, untold)
    ]
    assert times[1] <= 1.1 * times[0] < 2 * time_bound(graph)


def test_activations_go_to_the_disk_where_the_host_holds_none() -> None:
    graph = many_and_few()
    disks = replace(LINKED.links, d2h=2.0 * MiB, h2d=2.0 * MiB, disk_read=2.0 * MiB, disk_write=2.0 * MiB)
    small = Machine(host_capacity=8 * MiB, disk_capacity=2**40, links=disks)
    figures = registry.solve("joint", Problem(graph, 10 * MiB, small), 1.0, bound_seconds=0.0).figures
    assert figures.host_peak <= 8 * MiB
    assert figures.disk_peak >= 6 * MiB
