"""The simulator against a second replay, written independently (reference_replay.py), on random cases.

Both say valid with the same time and the same four byte figures, or both refuse at the same step for the
same rule. Within one step the rules may be checked in any order: the simulator's must be among those broken.
More cases than fit in a test run: benchmarks/simulator_fuzz.py.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from memplan.graphs.machine import Links
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule import Verb
from memplan.planner.simulate import Figures, simulate
from reference_replay import Accepted, Refused, replay
from strategies import Case, cases, random_case

_MANY_TURNS = 480


def judged(case: Case) -> Figures | InvalidScheduleError:
    try:
        return simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine).figures
    except InvalidScheduleError as refusal:
        return refusal


def disagreement(case: Case) -> str | None:
    """What the two replays say where they differ, None where they agree.

    Where a cycle settles slowly the reference, which only ever averages, gets more turns.
    """
    simulated = judged(case)
    for turns in (24, _MANY_TURNS):
        reference = replay(case.graph, case.schedule, budget=case.budget, machine=case.machine, turns=turns)
        if _agree(simulated, reference, turns):
            return None
        if isinstance(reference, Refused):
            break
    return f"simulator: {simulated!r}\nreference: {reference!r}"


def _agree(simulated: Figures | InvalidScheduleError, reference: Accepted | Refused, turns: int) -> bool:
    if isinstance(simulated, InvalidScheduleError):
        return (
            isinstance(reference, Refused)
            and simulated.step == reference.step
            and simulated.rule in reference.rules
        )
    if isinstance(reference, Refused):
        return False
    bytes_simulated = (simulated.peak, simulated.least_budget, simulated.host_peak, simulated.disk_peak)
    bytes_reference = (reference.peak, reference.least_budget, reference.host_peak, reference.disk_peak)
    return bytes_simulated == bytes_reference and simulated.time == pytest.approx(
        reference.time, rel=1e-9, abs=1e-9
    )


@settings(max_examples=600)
@given(cases())
def test_both_replays_agree(case: Case) -> None:
    assert disagreement(case) is None


@pytest.mark.parametrize("batch", range(8))
def test_both_replays_agree_on_seeded_cases(batch: int) -> None:
    for seed in range(500 * batch, 500 * batch + 500):
        difference = disagreement(random_case(Random(seed)))
        assert difference is None, f"random_case(Random({seed}))\n{difference}"


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


@settings(max_examples=150)
@given(cases())
def test_time_never_changes_memory(case: Case) -> None:
    """Links a thousand times slower: the same bytes, and no less time."""
    figures = judged(case)
    if isinstance(figures, InvalidScheduleError) or case.machine is None:
        return
    links = case.machine.links
    slow = Links(
        *(rate and rate / 1024 for rate in (links.d2h, links.h2d, links.disk_read, links.disk_write))
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
