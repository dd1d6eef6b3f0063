"""Iterations that note their own times: those of their operations and copies, without what these wait for."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hostile import TURNS, Lateness, case, eagerly, planned_step, train
from iterations import mean_square
from memplan.devices.device.cpu import Cpu
from memplan.graphs.machine import Links, Machine, Memory
from memplan.model.iteration import Iteration
from memplan.planner.residency.prefetch_placement import build_schedule
from memplan.planner.residency.residency import Residency
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.clock import Queue
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from not_none import not_none
from recomputing import recomputing
from torch import nn
from transfers import adamw, assert_equal, in_order, unmeasured

RATE = 1e6
"""Bytes/s of a link that sleeps."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """By operation, how long it sleeps; copies as long as at RATE."""
    seconds: dict[str, float] = {}

    def launched(_device: Any, _program: Any, operation: Any, _workspace: int) -> Any:
        target = operation.call.target

        def run(*arguments: Any, **keywords: Any) -> Any:
            time.sleep(seconds.get(operation.name, 0.0))
            return target(*arguments, **keywords)

        return run

    def copy(_device: Any, source: torch.Tensor, target: torch.Tensor) -> None:
        time.sleep(source.nbytes / RATE)
        target.copy_(source)

    monkeypatch.setattr(Cpu, "launched", launched)
    monkeypatch.setattr(Cpu, "copy", copy)
    return seconds


def iteration() -> Iteration:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 8)]
    return Iteration(nn.Sequential(*layers), (torch.randn(4, 8),), mean_square)


@pytest.mark.clock
def test_a_plain_schedule_times_each_operation(slow: dict[str, float]) -> None:
    """One that is made again counts with the mean of its runs; a failed iteration does not count."""
    made = iteration()
    program = trace(made)
    graph = unmeasured(program)
    schedule = recomputing(graph, random.Random(0))
    step = PlannedStep(made, program, schedule, Terms(graph))
    slow |= {operation.name: 0.01 * (1 + index % 3) for index, operation in enumerate(program.operations)}
    assert step.end_timing() is None
    source, baseline = step.source, step.run(made.inputs)
    step.begin_timing()
    assert step.end_timing() is None
    step.begin_timing()
    timed = [step.run(made.inputs) for _turn in range(3)]
    times = step.end_timing()
    assert times is not None
    assert times.copied == {}
    assert times.seconds.keys() == {(operation, 0) for operation in range(len(program.operations))}
    for operation, node in enumerate(program.operations):
        assert slow[node.name] <= times.seconds[operation, 0] < slow[node.name] + 0.009
    assert [span.step for span in times.spans] == np.flatnonzero(schedule.verbs == Verb.COMPUTE).tolist()
    assert {span.queue for span in times.spans} == {Queue.COMPUTE}
    assert times.spans[0].start == 0
    assert all(one.end == pytest.approx(next_.start) for one, next_ in pairwise(times.spans))
    for span in times.spans:
        name = program.operations[schedule.targets.item(span.step)].name
        assert slow[name] <= span.end - span.start < slow[name] + 0.02
    for each in (*timed, step.run(made.inputs)):
        assert torch.equal(not_none(each.loss), not_none(baseline.loss))
    assert step.source == source


@pytest.mark.clock
def test_waits_belong_to_no_operation_and_copies_have_their_rate(slow: dict[str, float]) -> None:
    made = iteration()
    program = trace(made)
    graph = unmeasured(program)
    runs = in_order(graph)
    weight = next(x for x in range(len(graph.tensors)) if graph.tensors.bytes[x] == 40 * 40 * 4)
    uses = [place for place, (operation, _mode) in enumerate(runs) if weight in graph.read_lists[operation]]
    offloaded = {(weight, use): Memory.HOST for use in uses}
    schedule = build_schedule(graph, Residency(runs, offloaded))
    machine = Machine(links=Links(RATE, RATE))
    step = PlannedStep(made, program, schedule, Terms(graph, machine=machine))
    slow |= {operation.name: 0.001 for operation in program.operations}
    for _turn in range(3):
        step.run(made.inputs)
    begun = time.perf_counter()
    step.begin_timing()
    for _turn in range(3):
        step.run(made.inputs)
    times = step.end_timing()
    whole = (time.perf_counter() - begun) / 3
    assert times is not None
    copy = graph.tensors.bytes[weight] / RATE
    assert whole > sum(times.seconds.values()) + copy  # the computing waits for what comes just in time
    assert max(times.seconds.values()) < copy
    back = times.copied[Queue.H2D]
    assert back.bytes == back.copies * graph.tensors.bytes[weight]
    assert back.copies == 3 * (schedule.verbs == Verb.PREFETCH).sum()
    assert back.seconds == pytest.approx(back.bytes / RATE, rel=0.2)
    came = {span.step: span for span in times.spans if span.queue == Queue.H2D}
    assert list(came) == np.flatnonzero(schedule.verbs == Verb.PREFETCH).tolist()
    for step_number, fetch in came.items():
        assert fetch.end - fetch.start == pytest.approx(copy, rel=0.2)
        reader = next(
            span
            for span in times.spans
            if span.queue == Queue.COMPUTE
            and span.step > step_number
            and weight in graph.read_lists[schedule.targets.item(span.step)]
        )
        assert reader.start >= fetch.end - 1e-3
    moved = schedule.verbs == Verb.OFFLOAD
    assert (Queue.D2H in times.copied) == bool(moved.any())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", range(6))
def test_on_a_hostile_device_timed_iterations_compute_the_same(number: int) -> None:
    """Random schedules with copies to host and disk and operations on the CPU, late at random."""
    made, late = case("blocks", adamw, random.Random(number)), Lateness(number)
    device = late.device()
    with late.jobs():
        step = planned_step(made, device)
        step.begin_timing()
        assert_equal(train(made, step, device), eagerly("blocks", adamw, TURNS))
        times = step.end_timing()
    assert times is not None
    rows = list(made.schedule.rows())
    assert times.seconds.keys() == {(target, where) for verb, target, where in rows if verb == Verb.COMPUTE}
    assert all(seconds >= 0 for seconds in times.seconds.values())
    assert all(min(copied) > 0 for copied in times.copied.values())
    assert sorted(span.step for span in times.spans) == [
        step for step, row in enumerate(rows) if row[0] != Verb.DELETE
    ]
    assert len(times.copied) == len({row[::2] for row in rows if row[0] in (Verb.OFFLOAD, Verb.PREFETCH)})
