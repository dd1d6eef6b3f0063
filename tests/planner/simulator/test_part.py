"""The schedule of a part of a graph keeps what the part needs, and no transfer more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.schedule.schedule import (
    Initial,
    Schedule,
    ScheduleStep,
    compute,
    delete,
    offload,
    prefetch,
)
from memplan.planner.simulator.part import part_of
from memplan.planner.simulator.simulate import simulate

HOST = Memory.HOST
FORWARD, BACKWARD, UPDATE = range(3)
W, M, Y, D = range(4)


def training(operations: Sequence[int]) -> Graph:
    """Some of F (reads w, makes y), B (reads y and w, makes d) and U (changes w and m in place)."""
    draft = Draft("training")
    w, m = draft.tensor("w", 4, Kind.PARAMETER), draft.tensor("m", 8, Kind.OPTIMIZER_STATE)
    y, d = draft.tensor("y", 2), draft.tensor("d", 1, Kind.GRADIENT)
    for operation in operations:
        if operation == FORWARD:
            draft.operation("F", time=1, reads=[w], writes=[y])
        elif operation == BACKWARD:
            draft.operation("B", time=1, reads=[y, w], writes=[d], phase=Phase.BACKWARD)
        else:
            draft.operation("U", time=1, mutates=[w, m], phase=Phase.UPDATE)
    return draft.graph()


def whole_schedule(
    before_update: Sequence[ScheduleStep], after_forward: Sequence[ScheduleStep] = ()
) -> Schedule:
    """w and m start on the host; both are on the device for the update, and are offloaded after it."""
    steps = [prefetch(W), compute(FORWARD), *after_forward, compute(BACKWARD), *before_update]
    steps += [compute(UPDATE), offload(M), delete(M), offload(W), delete(W)]
    return Schedule.of(steps, Initial(host=frozenset({W, M})))


def steps_of_part(
    schedule: Schedule, operations: Sequence[int], machine: Machine, budget: int = 100
) -> list[ScheduleStep]:
    """Return the steps of the part with these operations, by their numbers in the whole."""
    simulate(training(range(3)), schedule, budget=budget, machine=machine)
    graph = training(operations)
    part = part_of(schedule, graph, operations, budget=budget, machine=machine)
    figures = simulate(graph, part, budget=budget, machine=machine).figures
    assert figures.time <= simulate(training(range(3)), schedule, machine=machine).figures.time
    assert part.initial == schedule.initial
    return [compute(operations[step.target]) if step.verb == 0 else step for step in part]


@pytest.mark.parametrize("deleted", [False, True])
def test_what_only_the_update_needs_goes_with_it(deleted: bool) -> None:
    """Nothing changes w without the update, so its copy on the host stays right; m is not touched at all."""
    machine = Machine(links=Links(d2h=1.0, h2d=1.0))
    fetched = [prefetch(M), *([delete(M, HOST)] if deleted else [])]
    found = steps_of_part(whole_schedule(fetched), (FORWARD, BACKWARD), machine)
    assert found == [prefetch(W), compute(FORWARD), compute(BACKWARD), delete(W)]


@pytest.mark.parametrize("deleted", [False, True])
def test_what_the_update_changes_goes_back_to_the_host(deleted: bool) -> None:
    machine = Machine(links=Links(d2h=1.0, h2d=1.0))
    fetched = [prefetch(M), *([delete(M, HOST)] if deleted else [])]
    whole = whole_schedule(fetched)
    expected = [step for step in whole if step.verb > 0 or step.target == UPDATE]
    assert steps_of_part(whole, (UPDATE,), machine) == expected


def test_an_unused_copy_moves_if_the_host_has_no_room_for_it() -> None:
    """y takes the place of m on the host from F to B, so m has to be on the device meanwhile."""
    on_host = [prefetch(M), delete(M, HOST), offload(Y), delete(Y), prefetch(Y), delete(Y, HOST)]
    whole = whole_schedule([], on_host)
    links = Links(d2h=1.0, h2d=1.0)
    roomy, tight = (
        steps_of_part(whole, (FORWARD, BACKWARD), Machine(host_capacity=capacity, links=links))
        for capacity in (4 + 8 + 2, 4 + 8)
    )
    assert [step for step in roomy if step.target == M and step.verb > 0] == []
    assert [step for step in tight if step.target == M and step.verb > 0] == [
        *on_host[:2],
        offload(M),
        delete(M),
    ]
