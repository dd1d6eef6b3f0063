"""The least period of a chain whose tensors may lie on the host or the disk, by exhaustive search.

The class of schedules that is searched: nothing runs again; behind any use but the last a tensor may leave,
wholly, in any slot, to the host or on to the disk, from which it comes up again in any slot, and to the
device in any slot before its next use. Within a slot copies up come before copies down and those before the
disk's. All are judged by `simulate`; nothing else of memplan is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from math import inf
from random import Random
from typing import NamedTuple

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Schedule, ScheduleStep, compute, delete, offload, prefetch
from memplan.planner.simulator.simulate import simulate

HOST, DISK = Memory.HOST, Memory.DISK
Placed = tuple[int, int, ScheduleStep]
"""Slot, place within it, step."""


class OffloadInterval(NamedTuple):
    """Between the operations after and before."""

    tensor: int
    after: int
    before: int


def host_case(random: Random) -> tuple[Graph, Machine, int]:
    """Three tensors made and used by a chain of five operations, on little of both memories."""
    draft, count = Draft("host"), 5
    marks = [draft.tensor(f"m{k}", 0) for k in range(count)]
    made: list[list[int]] = [[] for _ in range(count)]
    used: list[list[int]] = [[] for _ in range(count)]
    sizes = [random.choice((1, 2, 2, 3)) for _ in range(3)]
    for k, size in enumerate(sizes):
        first, last = random.randint(0, 1), random.randint(3, count - 1)
        made[first].append(draft.tensor(f"x{k}", size))
        used[last].append(made[first][-1])
    for k in range(count):
        draft.operation(
            f"o{k}",
            time=random.randint(0, 3),
            workspace=sum(sizes) - 1 if k == 2 else 0,
            reads=[*marks[max(0, k - 1) : k], *used[k]],
            writes=[marks[k], *made[k]],
            recompute=False,
        )
    fast, slow = (
        [random.choice((1, 2, 4)) for _ in range(2)],
        [random.choice((0.25, 0.5, 1)) for _ in range(2)],
    )
    links = Links(*fast, *slow) if random.random() < 0.8 else Links(*fast)
    machine = Machine(host_capacity=random.randint(max(sizes), sum(sizes) - 1), links=links)
    return draft.graph(), machine, sum(sizes) + random.randint(0, 2)


def least_period(graph: Graph, machine: Machine, budget: int) -> float:
    """Seconds; ∞ where no schedule of the class is valid."""
    sizes = graph.tensors.bytes
    intervals: list[OffloadInterval] = []
    for x in range(len(sizes)):
        uses = sorted({*graph.producers[x].tolist(), *graph.consumers[x].tolist()})
        intervals += [OffloadInterval(x, a, b) for a, b in pairwise(uses) if sizes[x] and b > a + 1]
    best = inf
    for chosen in product(*(list(_choices(interval)) for interval in intervals)):
        schedule = Schedule.of(_steps(graph, [step for steps in chosen for step in steps]))
        try:
            best = min(best, simulate(graph, schedule, budget=budget, machine=machine).figures.time)
        except InvalidScheduleError:
            continue
    return best


def _choices(interval: OffloadInterval) -> Iterator[list[Placed]]:
    x, after, before = interval
    yield []
    for down in range(after + 1, before):
        leaves = [(down, 1, offload(x)), (down, 1, delete(x))]
        for up in range(down + 1, before + 1):
            comes = [(up, 0, prefetch(x)), (up, 0, delete(x, HOST))]
            yield leaves + comes
            written = [(down, 2, offload(x, DISK)), (down, 2, delete(x, HOST))]
            for read in range(down, up):
                yield leaves + written + [(read, 3, prefetch(x, HOST)), *comes]


def _steps(graph: Graph, placed: list[Placed]) -> list[ScheduleStep]:
    """With deletes behind the last uses."""
    steps: list[ScheduleStep] = []
    for operation in range(len(graph.operations)):
        here = [one for one in placed if one[0] == operation]
        steps += [step for _slot, _place, step in sorted(here, key=lambda one: one[1])]
        steps.append(compute(operation))
        for x in graph.input_lists[operation]:
            if graph.tensors.bytes[x] and graph.consumers[x].tolist()[-1] == operation:
                steps.append(delete(x))
    return steps
