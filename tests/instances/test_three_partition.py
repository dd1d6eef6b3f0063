"""The NP-hardness proof of weight offloading, replayed: a solved 3-partition leaves no idle time.

The instances and what they say: instances/three_partition.py. The proof's schedule is written out here by
hand; offload-greedy has to find one as good by itself, and must not where there is none.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine, Memory
from memplan.instances.three_partition import ThreePartition, partition, solvable, unsolvable
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import (
    Initial,
    Schedule,
    ScheduleStep,
    compute,
    delete,
    offload,
    prefetch,
)
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import Problem, Status
from memplan.solvers.registry import run as registry


def schedule(case: ThreePartition, graph: Graph, groups: list[list[int]]) -> Schedule:
    """groups: per second, the layers above 2m whose weights move in it."""
    m = case.count
    weight = {i: graph.tensor_index[f"w{i}"] for i in range(1, 5 * m + 1)}
    run = graph.operation_index
    steps: list[ScheduleStep] = [compute(run[f"F{i}"]) for i in range(1, 2 * m)]
    for j, group in enumerate(groups):
        steps += [prefetch(weight[i]) for i in group]
        steps += [offload(weight[2 * j + 1]), delete(weight[2 * j + 1])]
    steps += [compute(run[f"F{i}"]) for i in range(2 * m, 5 * m + 1)]
    for i in range(5 * m, 0, -1):
        if i <= 2 * m and i % 2 == 0:
            steps.append(prefetch(weight[i - 1]))
            for moved in groups[m - i // 2]:
                steps += [offload(weight[moved]), delete(weight[moved])]
        steps += [compute(run[f"B{i}"]), compute(run[f"U{i}"]), delete(graph.tensor_index[f"dw{i}"])]
        if i <= 2 * m and i % 2:
            steps.append(delete(weight[i], Memory.HOST))
    return Schedule.of(steps, Initial(host=frozenset(weight[i] for i in range(2 * m + 1, 5 * m + 1))))


def layers_of(case: ThreePartition) -> list[list[int]]:
    """The parts as layers."""
    assert case.parts is not None
    left = {2 * case.count + 1 + i: number for i, number in enumerate(case.numbers)}
    groups: list[list[int]] = []
    for part in case.parts:
        groups.append([])
        for number in part:
            layer = next(i for i, value in left.items() if value == number)
            groups[-1].append(layer)
            del left[layer]
    return groups


@pytest.mark.parametrize("m", range(1, 7))
def test_a_solved_partition_leaves_no_idle_time(m: int) -> None:
    case = solvable(m, seed=m, total=100)
    graph = case.graph()
    plan = schedule(case, graph, layers_of(case))
    figures = simulate(graph, plan, budget=case.budget).figures
    assert figures.time == pytest.approx(case.seconds, rel=1e-9)
    assert figures.peak == figures.least_budget == case.budget
    with pytest.raises(InvalidScheduleError, match="capacity"):
        simulate(graph, plan, budget=case.budget - 1)
    half = Machine(links=Links(d2h=50, h2d=50))
    slow = simulate(graph, plan, budget=case.budget, machine=half).figures
    assert slow.time == pytest.approx(2 * case.seconds)
    assert slow.peak == figures.peak


@pytest.mark.parametrize("m", [2, 3, 4])
def test_a_wrong_partition_does_not_fit(m: int) -> None:
    case = solvable(m, seed=m)
    graph, groups = case.graph(), layers_of(case)
    groups[0][0], groups[1][0] = groups[1][0], groups[0][0]
    wrong = schedule(case, graph, groups)
    with pytest.raises(InvalidScheduleError, match="capacity"):
        simulate(graph, wrong, budget=case.budget)
    roomy = simulate(graph, wrong, machine=Machine(links=Links(d2h=case.total, h2d=case.total))).figures
    assert roomy.least_budget > case.budget


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_numbers_that_have_no_partition_into_parts_of_any_size(m: int, seed: int) -> None:
    """By brute force over all subsets: the promise V/4 < x < V/2 leaves parts of three alone."""
    yes, no = solvable(m, seed), unsolvable(m, seed)
    for case in (yes, no):
        assert sum(case.numbers) == m * case.total
        assert all(case.total < 4 * x < 2 * case.total for x in case.numbers)
        assert splits(list(case.numbers), case.total) == (case is yes)
        assert (partition(list(case.numbers), case.total) is None) == (case is no)
    assert sorted(x for part in yes.parts or () for x in part) == sorted(yes.numbers)


def splits(numbers: list[int], total: int) -> bool:
    """Whether they fall into parts of sum `total`, of however many numbers each."""
    if not numbers:
        return True
    first, rest = numbers[0], numbers[1:]
    for count in range(len(rest) + 1):
        for others in combinations(range(len(rest)), count):
            if first + sum(rest[i] for i in others) == total:
                left = [x for i, x in enumerate(rest) if i not in others]
                if splits(left, total):
                    return True
    return False


@pytest.mark.parametrize(("m", "seed"), [(1, 0), (2, 1), (3, 2), (5, 3), (8, 4), (13, 5), (20, 6)])
def test_offload_greedy_fills_every_second(m: int, seed: int) -> None:
    case = solvable(m, seed)
    found = registry.solve("offload-greedy", Problem(case.graph(), case.budget), time_limit=10)
    assert found.figures.time == pytest.approx(case.seconds, rel=1e-9)
    assert found.figures.peak <= case.budget
    assert found.status == Status.OPTIMAL


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("m", "seed"), [(2, 0), (2, 1), (3, 2), (6, 3), (10, 4)])
def test_offload_greedy_claims_nothing_where_there_is_no_partition(m: int, seed: int) -> None:
    case = unsolvable(m, seed)
    found = registry.solve(
        "offload-greedy", Problem(case.graph(), case.budget), time_limit=1, bound_seconds=2
    )
    assert found.figures.time > case.seconds * (1 + 1e-6)
    assert found.status != Status.OPTIMAL


@pytest.mark.parametrize(("m", "total"), [(0, 1000), (1, 1000), (3, 10)])
def test_what_cannot_be_made_is_refused(m: int, total: int) -> None:
    with pytest.raises(InputError):
        unsolvable(m, 0, total)
