"""The NP-hardness proof of weight offloading, replayed: a solved 3-partition leaves no idle time.

Instance (Beaumont et al. 2022, Theorem 1; INRIA report hal-03580767), with V = budget unit = link rate:

    layers 1 … 2m:    odd ones have |w| = V and no work; even ones have no weight and a backward of 1 s
    layers 2m+1 … 5m: |w_i| = x_{i-2m-1}, no work;      F_2m takes m s;  device memory (m + 1) V

The transfers of each second must fill it exactly: V bytes up while V bytes come down. Hence the period is
2m seconds if and only if the x split into m parts of sum V.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule import Initial, Schedule, Step, compute, delete, offload, prefetch
from memplan.planner.simulate import simulate

V = 100
PARTS = [[26, 30, 44], [33, 33, 34], [40, 31, 29], [27, 28, 45], [36, 35, 29], [48, 26, 26]]


@dataclass
class Instance:
    graph: Graph
    weight: list[int]
    forward: list[int]
    backward: list[int]
    update: list[int]
    gradient: list[int]


def instance(m: int) -> Instance:
    """Lists are indexed by layer, from 1."""
    sizes = [0, *([V, 0] * m), *(x for part in PARTS[:m] for x in part)]
    layers = range(1, 5 * m + 1)
    draft = Draft(f"3-partition-{m}")
    x = [draft.tensor("x0", 0, Kind.INPUT)]
    weight = [-1, *(draft.tensor(f"w{i}", sizes[i], Kind.PARAMETER) for i in layers)]
    forward, backward, update, gradient = ([-1] * (5 * m + 1) for _ in range(4))
    for i in layers:
        x.append(draft.tensor(f"x{i}", 0))
        forward[i] = draft.operation(
            f"F{i}", time=m if i == 2 * m else 0, reads=[x[i - 1], weight[i]], writes=[x[i]]
        )
    g = x[-1]
    for i in reversed(layers):
        gradient[i] = draft.tensor(f"dw{i}", sizes[i], Kind.PARAMETER_GRADIENT)
        down = draft.tensor(f"g{i}", 0, Kind.GRADIENT)
        backward[i] = draft.operation(
            f"B{i}",
            time=int(i <= 2 * m and i % 2 == 0),
            reads=[g, weight[i]],
            writes=[gradient[i], down],
            phase=Phase.BACKWARD,
        )
        g = down
        update[i] = draft.operation(
            f"U{i}", time=0, reads=[gradient[i]], mutates=[weight[i]], phase=Phase.UPDATE
        )
    return Instance(draft.graph(), weight, forward, backward, update, gradient)


def schedule(case: Instance, m: int, parts: list[list[int]]) -> Schedule:
    """parts: per second, the layers above 2m whose weights move in it."""
    weight, steps = case.weight, list[Step]()
    steps += [compute(case.forward[i]) for i in range(1, 2 * m)]
    for j, part in enumerate(parts):
        steps += [prefetch(weight[i]) for i in part]
        steps += [offload(weight[2 * j + 1]), delete(weight[2 * j + 1])]
    steps += [compute(case.forward[i]) for i in range(2 * m, 5 * m + 1)]
    for i in range(5 * m, 0, -1):
        if i <= 2 * m and i % 2 == 0:
            odd, part = i - 1, parts[m - i // 2]
            steps.append(prefetch(weight[odd]))
            for moved in part:
                steps += [offload(weight[moved]), delete(weight[moved])]
        steps += [compute(case.backward[i]), compute(case.update[i]), delete(case.gradient[i])]
        if i <= 2 * m and i % 2:
            steps.append(delete(weight[i], Memory.HOST))
    return Schedule.of(steps, Initial(host=frozenset(weight[2 * m + 1 :])))


def machine(rate: float) -> Machine:
    return Machine(links=Links(d2h=rate, h2d=rate))


@pytest.mark.parametrize("m", range(1, len(PARTS) + 1))
def test_a_solved_partition_leaves_no_idle_time(m: int) -> None:
    case = instance(m)
    parts = [list(range(2 * m + 1 + 3 * j, 2 * m + 4 + 3 * j)) for j in range(m)]
    plan = schedule(case, m, parts)
    figures = simulate(case.graph, plan, budget=(m + 1) * V, machine=machine(V)).figures
    assert figures.time == pytest.approx(2 * m, rel=1e-9)
    assert figures.peak == figures.least_budget == (m + 1) * V
    with pytest.raises(InvalidScheduleError, match="capacity"):
        simulate(case.graph, plan, budget=(m + 1) * V - 1, machine=machine(V))
    slow = simulate(case.graph, plan, budget=(m + 1) * V, machine=machine(V / 2)).figures
    assert slow.time == pytest.approx(4 * m)
    assert slow.peak == figures.peak


@pytest.mark.parametrize("m", [2, 3, 4])
def test_a_wrong_partition_does_not_fit(m: int) -> None:
    case = instance(m)
    layers = list(range(2 * m + 1, 5 * m + 1))
    layers[0], layers[3] = layers[3], layers[0]
    wrong = schedule(case, m, [layers[3 * j : 3 * j + 3] for j in range(m)])
    with pytest.raises(InvalidScheduleError, match="capacity"):
        simulate(case.graph, wrong, budget=(m + 1) * V, machine=machine(V))
    roomy = simulate(case.graph, wrong, machine=machine(V)).figures
    assert roomy.least_budget > (m + 1) * V
