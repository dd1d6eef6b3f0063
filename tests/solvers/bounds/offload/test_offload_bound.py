"""The offloading bounds: never above a schedule, equal to what can be worked out, tight where published."""

from __future__ import annotations

import json
from functools import cache
from math import inf
from pathlib import Path

import pytest
from exact_offload import Optimum, optimum
from memplan import load_graph
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine
from memplan.instances.three_partition import solvable
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.solvers.bounds.lower_bounds import lower_bounds
from memplan.solvers.bounds.offload.offload_bound import offload_bound, weight_offload_bound
from memplan.solvers.problem import Problem
from small_offload import Case, direct_case, small_case

SEEDS = range(160)
ABOVE = 1 + 1e-7


@cache
def solved(seed: int) -> tuple[Case, Optimum]:
    case = small_case(seed)
    return case, optimum(case.graph, case.machine, case.budget, states=2_500)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_is_above_a_schedule(seed: int) -> None:
    case, best = solved(seed)
    whole = weight_offload_bound(case.graph, case.machine, case.budget, 2.0)
    assert offload_bound(case.graph, case.machine, case.budget).seconds <= best.period * ABOVE
    assert whole.seconds <= best.period * ABOVE


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(0, 120, 2))
def test_no_bound_is_above_a_schedule_that_writes_host_memory(seed: int) -> None:
    """With recomputation for some; nor is the floor above the least budget with a schedule."""
    case = direct_case(seed)
    graph, machine = case.graph, case.machine
    best = optimum(graph, machine, case.budget, recompute=seed % 5 == 0, states=2_500)
    assert time_bound(graph) <= best.period * ABOVE
    assert offload_bound(graph, machine, case.budget).seconds <= best.period * ABOVE
    assert offload_bound(graph, machine, case.budget, order="any").seconds <= best.period * ABOVE
    assert weight_offload_bound(graph, machine, case.budget, 2.0).seconds <= best.period * ABOVE
    assert optimum(graph, machine, minimum_memory(graph, machine) - 1, states=300).period == inf


@pytest.mark.scripts
def test_the_bound_closes_much_of_the_gap() -> None:
    """Of the gap between the time of all operations and the optimum, where there is one."""
    closed: list[float] = []
    for seed in SEEDS:
        case, best = solved(seed)
        trivial = time_bound(case.graph)
        if best.proven and trivial * 1.01 < best.period < inf:
            bound = max(
                offload_bound(case.graph, case.machine, case.budget).seconds,
                weight_offload_bound(case.graph, case.machine, case.budget, 2.0).seconds,
            )
            closed.append((bound - trivial) / (best.period - trivial))
    assert len(closed) >= 50
    assert sum(closed) / len(closed) >= 0.4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_recomputation_too(seed: int) -> None:
    case = small_case(seed)
    best = optimum(case.graph, case.machine, case.budget, recompute=True, states=4_000)
    assert offload_bound(case.graph, case.machine, case.budget).seconds <= best.period * ABOVE


def one_weight(seconds: float) -> Graph:
    """w, 6 B, changes once a turn; `large`, 6 B, lies on the device in between."""
    draft = Draft("one")
    w = draft.tensor("w", 6, Kind.PARAMETER)
    large = draft.tensor("large", 6)
    mark = draft.tensor("mark", 0)
    draft.operation("large", time=seconds, writes=[large], recompute=False)
    draft.operation("last", time=1, reads=[large], writes=[mark], recompute=False)
    draft.operation("U", time=1, reads=[mark], mutates=[w], phase=Phase.UPDATE, recompute=False)
    return draft.graph()


def test_what_cannot_be_hidden() -> None:
    """On 6 B w must be down, 6 / 2 s, before `large` begins, and comes up, 6 / 3 s, after `last`."""
    graph, machine = one_weight(5.0), Machine(links=Links(d2h=2, h2d=3))
    assert minimum_memory(graph, machine) == 6
    exact = 5 + 1 + 1 + 3 + 2
    assert optimum(graph, machine, 6).period == pytest.approx(exact)
    assert offload_bound(graph, machine, 6).seconds == pytest.approx(exact, rel=1e-6)
    assert offload_bound(graph, machine, 12).seconds == time_bound(graph)
    assert offload_bound(graph, machine, 5).seconds == inf


def test_an_update_on_the_cpu_is_bounded_by_the_cpu_and_the_links() -> None:
    for seed in range(2, 40, 6):
        case = small_case(seed)
        wide = Machine(links=Links(d2h=1e9, h2d=1e9))
        assert offload_bound(case.graph, wide, 10**6).seconds <= baseline(case.graph).time * ABOVE


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_proof_of_hardness_has_a_schedule_at_its_bound(m: int) -> None:
    """2m seconds, without idle time: graphs/test_three_partition.py replays it. With less memory there is
    some."""
    case = solvable(m, seed=m, total=100)
    graph = case.graph()
    assert graph.machine is not None
    assert offload_bound(graph, graph.machine, (m + 1) * 100).seconds == pytest.approx(2 * m)
    assert offload_bound(graph, graph.machine, (m + 1) * 100 - 30).seconds > 2 * m


def test_goals_limits_and_moments() -> None:
    case = small_case(28)
    full = offload_bound(case.graph, case.machine, case.budget)
    assert full.order == "file"
    assert full.transfers
    trivial = time_bound(case.graph)
    assert offload_bound(case.graph, case.machine, case.budget, 0.0).seconds >= trivial
    assert offload_bound(case.graph, case.machine, case.budget, goal=trivial).seconds == trivial


def test_solutions_carry_it_where_the_machine_has_links() -> None:
    case, best = solved(28)
    assert best.schedule is not None
    problem = Problem(case.graph, case.budget, case.machine)
    found = lower_bounds(problem, best.schedule, best.period, 10.0)
    assert [(bound.name, bound.order, bound.transfers) for bound in found] == [
        ("time of all operations", "any", True),
        ("offload", "any", True),
        ("offload", "file", True),
    ]
    assert lower_bounds(problem, best.schedule, best.period, 0.0) == found[:1]


@pytest.mark.parametrize("name", ["gpt2-d38-b16", "gpt2-d38-b32", "gpt2-d38-b64"])
def test_published_instances_have_bounds_without_idle_time(name: str, public: Path) -> None:
    """Table 1 of Beaumont et al. 2022, reconstructed: the bound is the sum of the computations."""
    folder = public / "weight-offload"
    graph = load_graph(folder / f"{name}.graph.json.gz")
    published = {row["name"]: row for row in json.loads((folder / "table1_results.json").read_text())}
    assert graph.machine is not None
    capacity = graph.machine.device_capacity
    assert capacity is not None
    bound = offload_bound(graph, graph.machine, capacity, 0.5)
    assert bound.seconds * 1000 == pytest.approx(published[name]["milp"], rel=1e-6)


def test_slow_links_must_cost_time(public: Path) -> None:
    """At 1 GB/s the bound is above the computations, as the published program's is: 1.095 times there."""
    graph = load_graph(public / "weight-offload" / "gpt2-d38-b32.graph.json.gz")
    assert graph.machine is not None
    assert graph.machine.device_capacity is not None
    slow = Machine(links=Links(d2h=1024e6, h2d=1024e6))
    goal = 1.04 * time_bound(graph)
    assert offload_bound(graph, slow, graph.machine.device_capacity, goal=goal).seconds >= goal * (1 - 1e-6)
