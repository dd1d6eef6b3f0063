"""When steps run: pictures to read off, and what holds of every timeline."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Phase
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Schedule, Verb, compute, delete, offload, prefetch
from memplan.planner.simulator.clock import Queue, transfer_queue
from memplan.planner.simulator.simulate import simulate
from memplan.planner.simulator.timeline import FENCE, LAUNCH, NOTHING, timeline
from strategies import random_case

BUS = Machine(host_capacity=24, links=Links(d2h=2.0, h2d=4.0))


def there_and_back() -> Graph:
    """F1 ─x─▶ B, F2 ─y─▶ nothing; F1 2 s, F2 3 s, B 1 s; x and y 4 bytes: 2 s to the host, 1 s back."""
    draft = Draft("there-and-back")
    x, y = draft.tensor("x", 4), draft.tensor("y", 4)
    draft.operation("F1", time=2, writes=[x])
    draft.operation("F2", time=3, writes=[y])
    draft.operation("B", time=1, reads=[x], phase=Phase.BACKWARD)
    return draft.graph()


def test_waits_for_room_and_for_a_fetch() -> None:
    """F2 waits until x has left, B until it is back.

    compute  F1F1....F2F2F2..B
    d2h          >>>>
    h2d                    <<
    """
    steps = [compute(0), offload(0), delete(0), compute(1), delete(1), prefetch(0), compute(2)]
    schedule = Schedule.of([*steps, delete(0), delete(0, Memory.HOST)])
    found = timeline(there_and_back(), schedule, budget=4, machine=BUS)
    assert found.period == 9
    assert found.start.tolist() == [0, 2, 2, 4, 7, 7, 8, 9, 9]
    assert found.end.tolist() == [2, 4, 2, 7, 7, 8, 9, 9, 9]
    assert found.idle.tolist()[:7] == [0, 7, 0, 2, 0, 8, 1]
    assert found.cause.tolist() == [
        NOTHING,
        Queue.COMPUTE,
        NOTHING,
        Queue.D2H,
        NOTHING,
        Queue.COMPUTE,
        Queue.H2D,
        NOTHING,
        NOTHING,
    ]


@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_a_thread_that_launches_slowly_is_a_cause(scale: float) -> None:
    draft = Draft("launches")
    x = draft.tensor("x", 4)
    draft.operation("F", time=scale, writes=[x], launch=3 * scale)
    draft.operation("G", time=scale, reads=[x], launch=3 * scale)
    found = timeline(draft.graph(), Schedule.of([compute(0), compute(1), delete(0)]))
    assert found.period == 6 * scale
    assert found.cause.tolist() == [LAUNCH, LAUNCH, NOTHING]
    assert found.idle.tolist() == [2 * scale, 2 * scale, 0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(2))
def test_every_timeline_adds_up(batch: int) -> None:
    """Queues run one step at a time in list order; nothing begins before what it reads is there; what a queue
    does and how long it stands still are its time; the period is the simulator's."""
    seen = waited = 0
    for seed in range(400 * batch, 400 * batch + 400):
        graph, schedule, budget, machine = random_case(Random(seed))
        try:
            figures = simulate(graph, schedule, budget=budget, machine=machine).figures
        except InvalidScheduleError:
            continue
        found = timeline(graph, schedule, budget=budget, machine=machine)
        assert found.period == pytest.approx(figures.time, rel=1e-12, abs=1e-12)
        for queue in Queue:
            rows = np.flatnonzero(found.queue == queue)
            gaps = found.start[rows][1:] - found.end[rows][:-1]
            np.testing.assert_allclose(gaps, found.idle[rows][1:], atol=1e-6)
        computed = found.queue == Queue.COMPUTE
        busy = (found.end - found.start)[computed].sum() + found.idle[computed].sum()
        assert busy == pytest.approx(found.end[computed].max(initial=0), abs=1e-6)
        assert ((found.queue == NOTHING) == (schedule.verbs == Verb.DELETE)).all()
        assert set(found.cause.tolist()) <= {NOTHING, *Queue, LAUNCH, FENCE}
        assert (found.idle[found.cause != NOTHING] > 0).all()
        assert (found.cause[found.idle > 1e-6] != NOTHING).all()
        _reads_what_was_copied(graph, schedule, found.start.tolist(), found.end.tolist())
        waited += int((found.cause != NOTHING).sum())
        seen += 1
    assert seen > 50
    assert waited > 50


def _reads_what_was_copied(graph: Graph, schedule: Schedule, start: list[float], end: list[float]) -> None:
    """A computation on the device begins behind the newest fetch of what it reads."""
    arrived: dict[int, float] = {}
    for step, (verb, target, where) in enumerate(schedule.rows()):
        if verb == Verb.COMPUTE and not graph.on_host(target, where):
            reads = set(graph.read_lists[target])
            if where:
                reads -= set(graph.operations.modes[target][where - 1].reads_host)
            assert all(start[step] >= arrived.get(x, -1e9) - 1e-6 for x in reads)
        elif verb > Verb.DELETE and transfer_queue(verb, where) == Queue.H2D:
            arrived[target] = end[step]
