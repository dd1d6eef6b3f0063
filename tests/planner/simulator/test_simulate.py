"""The simulator against a second replay on random cases (tests/support/two_replays.py).

More cases than fit in a test run: benchmarks/fuzz.py --only schedules.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Kind, Phase
from memplan.graphs.machine import JointRate, Link, Links, Machine, Memory
from memplan.planner.baseline import baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Initial, Schedule, Verb, compute, delete, offload, prefetch
from memplan.planner.simulator.simulate import Figures, figures_of, simulate
from memplan.planner.simulator.walk import Walk
from strategies import Case, cases, random_case
from two_replays import disagreement, judged


@pytest.mark.scripts
@settings(max_examples=600)
@given(cases())
def test_both_replays_agree(case: Case) -> None:
    assert disagreement(case) is None


@pytest.mark.scripts
@settings(max_examples=400)
@given(st.sampled_from((2, 4, 5)).flatmap(cases))
def test_both_replays_agree_on_any_number_of_memories(case: Case) -> None:
    assert disagreement(case) is None


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("memories", [2, 4, 5, 8])
def test_both_replays_agree_on_seeded_cases_of_any_number_of_memories(memories: int) -> None:
    """In most cases that hold with more than three memories the deeper ones are used."""
    deep = held = 0
    for seed in range(400):
        case = random_case(Random(seed), memories=memories)
        difference = disagreement(case)
        assert difference is None, f"random_case(Random({seed}), memories={memories})\n{difference}"
        found = judged(case)
        if isinstance(found, Figures):
            held += 1
            deep += any(found.deeper_peaks)
    assert held > 50
    assert deep > (held // 10 if memories > 3 else -1)


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(8))
def test_both_replays_agree_on_seeded_cases(batch: int) -> None:
    for seed in range(500 * batch, 500 * batch + 500):
        difference = disagreement(random_case(Random(seed)))
        assert difference is None, f"random_case(Random({seed}))\n{difference}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("batch", range(4))
def test_both_replays_agree_on_seeded_cases_of_sharded_training(batch: int, shared: bool) -> None:
    """Weights are gathered and gradients scattered in a good part of the cases that hold."""
    held = passed = 0
    for seed in range(200 * batch, 200 * batch + 200):
        case = random_case(Random(seed), peers=True, shared=shared)
        difference = disagreement(case)
        assert difference is None, f"random_case(Random({seed}), peers=True, shared={shared})\n{difference}"
        if isinstance(judged(case), Figures):
            held += 1
            passed += any(
                verb > Verb.DELETE and x in case.graph.tensors.spread for verb, x, _to in case.schedule.rows()
            )
    assert held > 50
    assert passed > held // 10


@pytest.mark.sampled(1)
@pytest.mark.parametrize("memories", [2, 3, 5])
def test_both_replays_agree_on_seeded_cases_of_links_that_take_turns(memories: int) -> None:
    """And no schedule is faster than on the same machine if each link has its own resource."""
    slower = 0
    for seed in range(300):
        case = random_case(Random(seed), memories=memories, shared=True, peers=seed % 2 == 0)
        difference = disagreement(case)
        assert difference is None, f"random_case(Random({seed}), memories={memories}, …)\n{difference}"
        found, machine = judged(case), case.machine
        if isinstance(found, Figures) and machine is not None:
            alone = judged(case._replace(machine=replace(machine, shared=(), joint_rates=())))
            assert isinstance(alone, Figures)
            assert replace(alone, time=found.time) == found
            assert alone.time <= found.time * (1 + 1e-9)
            slower += found.time > alone.time * (1 + 1e-9)
    assert slower > 5


SHARED = {
    # By hand: w comes for 2 s, v leaves for 3 s, then changes anew. Apart, the slower of both.
    "apart": ((), (), 3.0),
    "in turns": ((("d2h", "h2d"),), (), 5.0),
    "up to twice a link": ((), (JointRate(("d2h", "h2d"), 2.0),), 3.0),
    # A copy holds the resource for two thirds of its seconds: (2 + 3) * 2 / 3 s of it are taken.
    "up to one and a half": ((), (JointRate(("d2h", "h2d"), 1.5),), 10 / 3),
    "no faster than both in turns": ((), (JointRate(("d2h", "h2d"), 1.0),), 5.0),
    "each with something else": ((("d2h", "cpu"), ("h2d", "peers")), (), 3.0),
}


@pytest.mark.parametrize(("shared", "joint_rates", "period"), SHARED.values(), ids=SHARED)
def test_links_that_share_by_hand(
    shared: tuple[tuple[str, ...], ...], joint_rates: tuple[JointRate, ...], period: float
) -> None:
    draft = Draft("one operation")
    w, v = draft.tensor("w", 2, Kind.PARAMETER), draft.tensor("v", 3, Kind.PARAMETER)
    draft.operation("change v", time=0.0, mutates=[v], phase=Phase.UPDATE, recompute=False)
    graph = draft.graph()
    steps = [compute(0), offload(v), prefetch(w), delete(w), delete(v, Memory.HOST)]
    schedule = Schedule.of(steps, Initial(host=[w]))
    machine = Machine(links=Links(1.0, 1.0), shared=shared, joint_rates=joint_rates)
    assert simulate(graph, schedule, machine=machine).figures.time == pytest.approx(period)


@settings(max_examples=150)
@given(cases())
def test_least_budget_is_the_least(case: Case) -> None:
    """With it the schedule is valid and counts the same; with a byte less it is refused for capacity."""
    figures = judged(case)
    if isinstance(figures, InvalidScheduleError):
        return
    least = judged(case._replace(budget=figures.least_budget))
    assert isinstance(least, Figures)
    assert least.peak == least.least_budget == figures.least_budget <= figures.peak
    if figures.least_budget:
        refusal = judged(case._replace(budget=figures.least_budget - 1))
        assert isinstance(refusal, InvalidScheduleError)
        assert refusal.rule == "capacity"


@pytest.mark.scripts
@settings(max_examples=150)
@given(cases())
def test_time_never_changes_memory(case: Case) -> None:
    """Links a thousand times slower: the same bytes, and no less time."""
    figures = judged(case)
    if isinstance(figures, InvalidScheduleError) or case.machine is None:
        return
    links = case.machine.links
    slow = Links(
        *(
            link and Link(link.rate / 1024, link.latency)
            for link in (links.d2h, links.h2d, links.disk_read, links.disk_write)
        )
    )
    slower = judged(case._replace(machine=replace(case.machine, links=slow)))
    assert isinstance(slower, Figures)
    assert replace(slower, time=figures.time) == figures
    assert slower.time >= figures.time * (1 - 1e-9)


@settings(max_examples=150)
@given(cases())
def test_the_curve_is_the_peak_drawn(case: Case) -> None:
    """One value per step; without transfers its largest is the peak, where residents alone are not more."""
    if isinstance(judged(case), InvalidScheduleError):
        return
    outcome = simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine)
    assert len(outcome.device_curve) == len(case.schedule)
    assert all(0 <= value <= outcome.figures.peak for value in outcome.device_curve.tolist())
    if all(verb < Verb.OFFLOAD for verb, _target, _where in case.schedule.rows()):
        start = sum(
            case.graph.tensor(x).bytes
            for x in range(len(case.graph.tensors))
            if case.graph.resident[x] and x not in case.schedule.initial.host | case.schedule.initial.disk
        )
        assert max([start, *outcome.device_curve.tolist()]) == outcome.figures.peak


def test_figures_are_played_once_for_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another limit, machine or graph, and a schedule that is refused, are judged anew."""
    played = 0
    run_iteration = Walk.run_iteration

    def counted(self: Walk) -> object:
        nonlocal played
        played += 1
        return run_iteration(self)

    monkeypatch.setattr(Walk, "run_iteration", counted)
    graph = chain(3)
    schedule = baseline_schedule(graph)
    figures = simulate(graph, schedule).figures
    budgets = [figures.peak, figures.peak, figures.peak + 1, figures.peak]
    assert [figures_of(graph, schedule, budget=budget) for budget in budgets] == [figures] * 4
    assert played == 1 + 2
    figures_of(graph, schedule, budget=figures.peak, machine=Machine(host_capacity=1))
    figures_of(chain(3), schedule, budget=figures.peak, machine=Machine(host_capacity=1))
    assert played == 1 + 4
    for _again in range(2):
        with pytest.raises(InvalidScheduleError):
            figures_of(graph, schedule, budget=figures.peak - 1)
    assert played == 1 + 6
    for more in range(2, 6):  # only the last few questions are kept
        figures_of(graph, schedule, budget=figures.peak + more)
    figures_of(graph, schedule, budget=figures.peak)
    assert played == 1 + 11
    with pytest.raises(ValueError, match="read-only"):
        schedule.targets[0] = 1
