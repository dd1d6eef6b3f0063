"""Stages and slots: every sequence that is cut into them has the events of its slots, no other has any."""

from __future__ import annotations

from random import Random

import pytest
from memplan.planner.schedule.sequence import Run
from memplan.solvers.recomputation.moccasin.timeline import Timeline
from memplan.solvers.stages.slots import last_stages
from small_graphs import small_graph


@pytest.mark.parametrize("number", range(12))
def test_events_are_numbered_stage_by_stage(number: int) -> None:
    random = Random(number)
    graph = small_graph(random)
    timeline, last = Timeline(graph, 0), last_stages(graph)
    stages = len(graph.operations)
    again = [operation for operation in range(stages) if last[operation] > operation]
    assert timeline.width == len(again) + 1
    assert timeline.horizon == stages * timeline.width
    runs, wanted = list[Run](), list[int]()
    for stage in range(stages):
        for place, operation in enumerate(again):
            if operation < stage <= last[operation] and random.random() < 0.6:
                runs.append((operation, 0))
                wanted.append(stage * timeline.width + place)
        runs.append((stage, 0))
        wanted.append((stage + 1) * timeline.width - 1)
    assert timeline.events(runs) == wanted == sorted({*wanted})
    assert timeline.events(runs[:-1]) is None  # the last stage has no end
    stage = 0
    for place, run in enumerate(runs):
        if run[0] != stage:  # a slot has one run
            assert timeline.events([*runs[: place + 1], *runs[place:]]) is None
        stage += run[0] == stage
    baseline = [(stage, 0) for stage in range(stages)]
    for operation in again:
        for stage in {*range(stages + 1)} - {operation}:  # there it would be its own run
            repeated = timeline.events([*baseline[:stage], (operation, 0), *baseline[stage:]])
            assert (repeated is not None) == (operation < stage <= last[operation])


def test_results_that_may_leave_are_needed_at_the_end() -> None:
    for number in range(12):
        graph = small_graph(Random(number))
        needed = Timeline(graph, 0).results
        assert [*needed] == [x for x in graph.results if not graph.resident[x]]
