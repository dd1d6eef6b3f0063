"""What limits a schedule: the sentences are the simulator's peak, and shares of the iteration."""

from __future__ import annotations

import re
from random import Random

import pytest
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine, Memory
from memplan.graphs.units import format_bytes
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.report import Report
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.simulator.simulate import simulate
from memplan.planner.simulator.timeline import timeline
from memplan.report.limits import memory_limit, time_parts
from memplan.report.subject import Subject
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from strategies import random_case


def told(
    graph: Graph, schedule: Schedule, budget: int | None = None, machine: Machine | None = None
) -> tuple[str, str]:
    figures = simulate(graph, schedule, budget=budget, machine=machine).figures
    subject = Subject(graph, schedule, Report(figures, baseline(graph)), budget, machine)
    line = timeline(graph, schedule, budget=budget, machine=machine)
    return memory_limit(subject, subject.copies()[Memory.DEVICE]), time_parts(subject, line)


def test_a_baseline_computes_all_the_time() -> None:
    graph = chain(3, uniform=True)
    peak = baseline(graph).peak
    memory, time = told(graph, baseline_schedule(graph), 2 * peak)
    assert memory.startswith(f"Most memory: {format_bytes(peak)} of {format_bytes(2 * peak)} while ")
    assert "activation" in memory
    assert memory.count(", ") >= 3
    assert time == "Time of the device: 100.0% computing. More memory can save at most 0.0% of it."
    assert told(graph, baseline_schedule(graph))[0].startswith(f"Most memory: {format_bytes(peak)} while ")


def test_a_plan_that_recomputes_says_so() -> None:
    graph = chain(6, uniform=True)
    budget = int(0.85 * baseline(graph).peak)
    found = registry.solve("search", Problem(graph, budget), 2.0, bound_seconds=0)
    memory, time = told(graph, found.schedule, budget)
    assert f": {format_bytes(found.figures.peak)} of {format_bytes(budget)} " in memory
    assert time.endswith(
        f"More memory can save at most {1 - baseline(graph).time / found.figures.time:.1%} of it."
    )
    computing, recomputing = map(float, re.findall(r"([\d.]+)% (?:re)?computing", time))
    assert computing + recomputing == pytest.approx(100, abs=0.11)
    assert recomputing == pytest.approx(100 * (1 - baseline(graph).time / found.figures.time), abs=0.06)


def test_of_random_schedules_the_bytes_are_the_simulators_and_shares_add_up() -> None:
    seen = waiting = 0
    for seed in range(300):
        case = random_case(Random(seed))
        try:
            figures = simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine).figures
        except InvalidScheduleError:
            continue
        memory, time = told(case.graph, case.schedule, case.budget, case.machine)
        if not len(case.schedule):
            assert memory == ""
            continue
        assert f" {format_bytes(figures.peak)} " in memory, seed
        assert memory.endswith(".")
        shares = [float(share) for share in re.findall(r"([\d.]+)% (?!of)", time)]
        if figures.time:
            # Parts below 0.5 % are left out.
            assert 98 <= sum(shares) <= 100.2, (seed, time)
        seen += 1
        waiting += "most of it for" in time
    assert seen > 30
    assert waiting > 3
