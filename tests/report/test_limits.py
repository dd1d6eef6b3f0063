"""What limits a schedule: the sentences are the simulator's peak, and shares of the iteration."""

from __future__ import annotations

import re
from random import Random

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Machine, Memory
from memplan.graphs.units import format_bytes
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.report import Report
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.simulator.simulate import simulate
from memplan.planner.simulator.timeline import timeline
from memplan.report.limits import memory_limit, memory_price, time_parts
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


def graph_of_one_choice() -> Graph:
    """Return a graph that recomputes `a`, 100 bytes and 2 s, or holds it while `b` is there.

    f1 (2 s) ──▶ a ──▶ f2 (1 s) ──▶ m ──▶ f3 (1 s) ──▶ b (1,000 bytes) ──▶ f4 (1 s) ──▶ c ──▶ b1 (3 s)
                 └─────────────────────────────────────────────────────────────────────────────┘
    """
    draft = Draft("choice")
    x = draft.tensor("x", 2000, Kind.INPUT)
    a, b = draft.tensor("a", 100), draft.tensor("b", 1000)
    m, c, end = (draft.tensor(name, 8) for name in ("m", "c", "d"))
    draft.operation("f1", time=2.0, reads=[x], writes=[a])
    draft.operation("f2", time=1.0, reads=[a], writes=[m])
    draft.operation("f3", time=1.0, reads=[m], writes=[b])
    draft.operation("f4", time=1.0, reads=[b], writes=[c])
    draft.operation("b1", time=3.0, reads=[a, c], writes=[end])
    return draft.graph([end])


def test_the_price_of_memory_is_that_of_the_only_choice() -> None:
    """Without room for `a` next to `b`, f1 runs twice: 2 s of 10. A tenth more memory is room enough."""
    graph = graph_of_one_choice()
    eager = baseline(graph)
    least = eager.peak - 100
    found = registry.solve("checkmate", Problem(graph, least), 20.0)
    assert (eager.time, found.figures.time) == pytest.approx((8.0, 10.0))
    report = Report(found.figures, eager)
    expected = (
        "300 B more memory can save at most 2.00 s (20.0%): "
        "2.00 s by which the lower bound falls, and 0 s of gap at this budget."
    )
    assert memory_price(Subject(graph, found.schedule, report, least), 10.0) == expected
    kept = Subject(graph, baseline_schedule(graph), Report(eager, eager), eager.peak)
    assert " can save at most 0 s (0.0%): 0 s by which the lower bound falls, " in memory_price(kept, 10.0)
    assert memory_price(Subject(graph, found.schedule, report), 10.0) == ""
    assert memory_price(Subject(graph, found.schedule, report, least), 0.0) == ""


def test_what_a_schedule_is_above_its_own_bound_is_no_price_of_memory() -> None:
    """A schedule that recomputes for nothing: all that it can save is above the bound."""
    graph = graph_of_one_choice()
    eager = baseline(graph)
    found = registry.solve("checkmate", Problem(graph, eager.peak - 100), 20.0)
    text = memory_price(Subject(graph, found.schedule, Report(found.figures, eager), eager.peak), 10.0)
    assert text.endswith(
        "at most 2.00 s (20.0%): 0 s by which the lower bound falls, and 2.00 s of gap at this budget."
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count", [4, 6, 8])
@pytest.mark.parametrize("share", [0.76, 0.82, 0.9])
def test_no_schedule_with_more_memory_saves_more(count: int, share: float) -> None:
    """The best of `auto` at both budgets."""
    graph = chain(count)
    budget = int(share * baseline(graph).peak)
    found = registry.solve("auto", Problem(graph, budget), 5.0)
    assert found.figures.time > baseline(graph).time
    subject = Subject(
        graph, found.schedule, Report(found.figures, baseline(graph), found.lower_bound), budget
    )
    (saved,) = re.findall(r"\(([\d.]+)%\)", memory_price(subject, 5.0))
    larger = registry.solve("auto", Problem(graph, budget + budget // 10), 5.0)
    assert 1 - larger.figures.time / found.figures.time <= float(saved) / 100 + 0.0006
