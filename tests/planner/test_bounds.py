"""No schedule passes below the floor or the time bound; where exact optima are known, they agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.instances.tiny import tiny_graphs
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.schedule.schedule import DEFAULT_MODE, Initial, Schedule, compute
from memplan.planner.simulator.simulate import simulate


def test_floor_equals_the_oracles() -> None:
    tiny = tiny_graphs()
    assert len(tiny) == 105
    for graph, min_memory, seconds, optima, _whole in tiny:
        assert minimum_memory(graph) == min_memory <= optima[0][0]
        assert time_bound(graph) == seconds


@pytest.mark.parametrize("graph", [chain(7), unet(4), layered(80)], ids=lambda graph: graph.name)
def test_the_plain_schedule_is_above_both(graph: Graph) -> None:
    figures = baseline(graph)
    assert minimum_memory(graph) <= figures.peak
    assert time_bound(graph) == figures.time


def test_floor_counts_what_stays_and_what_a_mode_spares() -> None:
    draft = Draft("weights")
    x = draft.tensor("x", 1, Kind.INPUT)
    w, state = draft.tensor("w", 10, Kind.PARAMETER), draft.tensor("s", 100, Kind.OPTIMIZER_STATE)
    g = draft.tensor("g", 1000, Kind.PARAMETER_GRADIENT)
    draft.operation("F", time=3, reads=[x, w], writes=[g], workspace=10_000)
    draft.operation(
        "U",
        time=2,
        reads=[g],
        mutates=[w, state],
        phase=Phase.UPDATE,
        launch=7,
        modes=[Mode("cpu", 9, 0, (), on_host=True, launch=2.5)],
    )
    graph = draft.graph([g])
    linked = Machine(links=Links(d2h=1, h2d=1))
    assert minimum_memory(graph, linked) == 1 + 10 + 1000 + 10_000
    assert minimum_memory(graph) == 1 + 10 + 100 + 1000 + 10_000, "no gradient gets to the host"
    assert time_bound(graph) == 3
    slow = replace(graph, operations=replace(graph.operations, launch=np.array([0.75, 7])))
    assert time_bound(slow) == 0.75 + 2.5, "one thread launches all, for the CPU too"


def test_what_may_lie_on_the_host_from_the_start_is_no_floor() -> None:
    """Two schedules that the simulator accepts at the floor: a weight that nobody touches, one read there."""
    for modes in ([], [Mode("direct", 2, 0, (1,), reads_host=(2,))]):
        draft = Draft("host")
        x, y = draft.tensor("x", 1, Kind.INPUT), draft.tensor("y", 1)
        w = draft.tensor("w", 100, Kind.PARAMETER)
        draft.operation("F", time=1, reads=[x, w] if modes else [x], writes=[y], modes=modes)
        graph, offloaded = draft.graph([y]), Initial(host=frozenset({w}))
        schedule = Schedule.of([compute(0, 1 if modes else DEFAULT_MODE)], offloaded)
        figures = simulate(graph, schedule, machine=Machine()).figures
        assert minimum_memory(graph) == figures.peak == 2


def test_results_may_leave_where_there_is_a_link_down() -> None:
    draft = Draft("down")
    made = [draft.tensor(f"r{k}", 100) for k in range(2)]
    for k, tensor in enumerate(made):
        draft.operation(f"n{k}", time=1, writes=[tensor])
    graph, down = draft.graph(made), Machine(links=Links(d2h=1))
    assert minimum_memory(graph) == 200
    assert minimum_memory(graph, down) == 100


def test_results_that_a_mode_makes_on_the_host_need_no_room() -> None:
    """Two schedules that the simulator accepts at the floor: on the CPU, and by the device in host memory."""
    ways: tuple[dict[str, Any], ...] = ({"on_host": True}, {"writes_host": (1,)})
    for way in ways:
        draft = Draft("below")
        first, second = draft.tensor("r0", 5), draft.tensor("r1", 5)
        draft.operation("n0", time=1, writes=[first])
        draft.operation("n1", time=1, writes=[second], modes=[Mode("below", 2, 0, (second,), **way)])
        graph = draft.graph([first, second])
        figures = simulate(graph, Schedule.of([compute(0), compute(1, 1)]), machine=Machine()).figures
        assert minimum_memory(graph) == figures.peak == 5


def test_results_alone_can_set_the_floor() -> None:
    draft = Draft("results")
    made = [draft.tensor(f"r{k}", 5) for k in range(4)]
    for k, tensor in enumerate(made):
        draft.operation(f"n{k}", time=1, writes=[tensor])
    assert minimum_memory(draft.graph(made)) == 20
