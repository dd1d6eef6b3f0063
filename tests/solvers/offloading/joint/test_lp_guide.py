"""Starts that a linear program advises: what stays and goes is as it says; Ctrl-C leaves the first one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from joint_graphs import LINKED, trained
from memplan.graphs.files.files import load_graph
from memplan.graphs.machine import Machine
from memplan.instances.families import decoder
from memplan.planner.baseline import baseline
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.offload.fractions import Fractions
from memplan.solvers.offloading.joint import joint, start
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.offloading.joint.lp_guide import LpGuide
from memplan.solvers.offloading.joint.start import Starts, host_modes
from memplan.solvers.problem import Options, Problem

BUDGET_SHARE = 0.6


def starts_of(blocks: int, seed: int) -> Starts:
    graph = trained(blocks, seed)
    return Starts(Drops(graph), LINKED, int(BUDGET_SHARE * baseline(graph).peak), lambda: True)


def made_up(starts: Starts, random: Random) -> Fractions:
    """Any parts at any moments, some of them unknown; the turn's start among them."""
    count, tensors = len(starts.drops.runs), len(starts.graph.tensors)
    moments = [-1, *sorted(random.sample(range(count), 6))]
    parts = np.array([[random.choice((0.0, 0.2, 0.5, 1.0, np.nan)) for _ in range(tensors)] for _ in moments])
    return Fractions(moments, parts, parts.copy(), np.array([random.random() for _ in range(count)]))


@pytest.mark.parametrize("seed", range(10))
def test_what_the_program_keeps_stays_first(seed: int) -> None:
    """In the mean over the moments that an interval spans, in this iteration and the next."""
    starts = starts_of(4, seed)
    advice, state = made_up(starts, Random(seed)), starts.state
    guide, intervals, runs = (
        LpGuide(starts.drops, advice, starts.slots.places),
        state.intervals,
        len(state.runs),
    )
    kept: dict[object, float] = {}
    for interval in intervals:
        parts = [
            float(advice.there[s, interval.tensor])
            for s, moment in enumerate(advice.moments)
            for place in (
                (starts.slots.places[moment], starts.slots.places[moment] + runs) if moment >= 0 else ()
            )
            if interval.after < place < interval.before and not np.isnan(advice.there[s, interval.tensor])
        ]
        kept[interval] = sum(parts) / len(parts) if parts else 1.5
    preferred = guide.preferred(state, intervals)
    assert sorted(preferred) == sorted(intervals)
    assert [kept[each] for each in preferred] == pytest.approx(sorted(kept.values(), reverse=True), abs=1e-3)
    assert guide.preferred(state, []) == []


@pytest.mark.parametrize("seed", range(10))
def test_the_less_of_a_tensor_is_anywhere_the_sooner_it_is_dropped(seed: int) -> None:
    starts = starts_of(5, seed)
    updates = [[update] for update in host_modes(starts.graph)]
    guide = LpGuide(starts.drops, made_up(starts, Random(seed)), starts.slots.places)
    choices = list(guide.choices(updates))
    on_cpu = list(dict.fromkeys(side for _dropped, side in choices))
    assert on_cpu[-1] == frozenset()
    assert on_cpu[0] <= {update for group in updates for update in group}
    for side in on_cpu:
        dropped = [tensors for tensors, other in choices if other == side]
        assert all(fewer <= more for fewer, more in pairwise(dropped))
        assert {*dropped[-1]} <= {*starts.drops.saved}


def test_updates_go_to_the_cpu_for_as_long_as_the_program_has_any_there() -> None:
    """To the nearest update, those of which most is there."""
    graph = decoder("phi-2", "rtx3060", 1)
    drops, count = Drops(graph), len(graph.operations)
    updates = list(host_modes(graph))
    order = [operation for operation, _mode in drops.runs]
    on_cpu = np.zeros(count)
    for rank, update in enumerate(updates):
        on_cpu[order.index(update)] = 1.0 / (1 + rank)
    nothing = np.full((1, len(graph.tensors)), np.nan)
    guide = LpGuide(drops, Fractions([0], nothing, nothing, on_cpu), range(count))
    chosen, times = next(guide.choices([[update] for update in updates]))[1], graph.operations.time
    asked = sum(times[update] / (1 + rank) for rank, update in enumerate(updates))
    assert chosen == {*updates[: len(chosen)]}
    assert abs(sum(times[update] for update in chosen) - asked) <= max(times[updates]) / 2


@pytest.mark.scripts
def test_advice_makes_better_starts(public: Path) -> None:
    """On a trace with a disk and little host memory, where filling alone is a sixth above the bound."""
    graph = load_graph(public / "traces" / "two-links.json.gz")
    machine, budget = graph.machine or Machine(), int(0.35 * baseline(graph).peak)
    seconds: list[float] = []
    for limit in (0.0, 120.0):
        starts = Starts(Drops(graph), machine, budget, lambda: True)
        starts.search(limit)
        assert (starts.guide is None) == (limit == 0.0)
        seconds.append(min(found.outcome.seconds for found in starts.found))
    assert seconds[1] < 0.95 * seconds[0]


def test_ctrl_c_while_advice_is_sought_leaves_the_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "guided", interrupted)
    graph = trained(4, 1)
    problem = Problem(graph, int(BUDGET_SHARE * baseline(graph).peak), LINKED)
    answer = joint.solve(problem, Options(30.0))
    assert answer.interrupted
    simulate(graph, answer.schedule, budget=problem.budget, machine=LINKED)
