"""The low, expected and high ends of an estimate, and what the memory is made of."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Machine
from memplan.planner.addresses.lifetimes import WORKSPACE, lifetimes
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import DEFAULT_MODE, Verb
from memplan.planner.simulator.simulate import simulate
from memplan.sizing.breakdown import KINDS, breakdown
from memplan.sizing.estimate_range import memory_span, time_span, usable
from strategies import random_case

NOWHERE = Machine()


def network() -> Graph:
    """h.0 and h.1 have a weight of 10 and an activation of 100 each; the second needs 7 beside."""
    draft = Draft("network")
    x = draft.tensor("x", 5, Kind.INPUT)
    for number in range(2):
        layer = f"h.{number}.mlp.up"
        weight = draft.tensor(f"w{number}", 10, Kind.PARAMETER, layer)
        made = draft.tensor(f"a{number}", 100, Kind.ACTIVATION, layer)
        draft.operation(f"F{number}", time=1 + number, reads=[x, weight], writes=[made], layer=layer,
                        workspace=7 * number)  # fmt: skip
        x = made
    draft.operation("loss", time=1, reads=[x], writes=[draft.tensor("loss", 1)])
    return draft.graph([len(draft.graph().tensors) - 1])


def test_the_ends_of_memory() -> None:
    graph = network()
    worst = replace(graph, operations=replace(graph.operations, workspace=np.array([0, 50, 0])))
    plain = baseline_schedule(graph)
    arguments = (graph, worst, plain, baseline(graph).peak, NOWHERE, 1000)
    assert memory_span(*arguments, None) == (225, 232 + 1000, 275 + 1000)
    assert memory_span(*arguments, lambda rows: 2 * int(rows.live().max())).high == int(1.12 * 550) + 1000
    assert memory_span(*arguments, lambda _rows: 0).high == int(1.12 * 275) + 1000
    same = memory_span(graph, graph, *arguments[2:], lambda rows: int(rows.live().max()))
    assert same == (225, 232 + 1000, int(1.12 * 232) + 1000)


@pytest.mark.scripts
def test_the_ends_of_a_plans_memory_are_those_of_its_lifetimes() -> None:
    held = 0
    for seed in range(400):
        case = random_case(Random(seed))
        graph, schedule = case.graph, case.schedule
        budget, machine = case.budget or 2**40, case.machine or Machine()
        try:
            replay = simulate(graph, schedule, budget=budget, machine=machine)
        except InvalidScheduleError:
            continue
        held += 1
        places = np.arange(len(graph.operations))
        workspace = graph.operations.workspace + places
        worst = replace(graph, operations=replace(graph.operations, workspace=workspace))
        runs = (schedule.verbs == Verb.COMPUTE) & (schedule.wheres == DEFAULT_MODE)
        more = np.where(runs, schedule.targets, 0)
        rows = lifetimes(graph, schedule, budget=budget, machine=machine)
        expected = (
            int(rows.of(rows.tensor != WORKSPACE).live().max()),
            int(rows.live().max()) + 1,
            int(rows.with_more_workspace(more).live().max()) + 1,
        )
        assert memory_span(graph, worst, schedule, budget, machine, 1, None) == expected
        assert memory_span(graph, worst, schedule, budget, machine, 1, None, replay) == expected
    assert held > 100


def test_the_ends_of_time_and_the_reserve() -> None:
    assert time_span(10.0) == (10.0 / 1.4, 10.0, 14.0)
    assert usable(100, None) == 99
    assert usable(100, 30) == 70
    assert usable(100, 130) == 0


def test_the_peak_by_kind_and_by_module() -> None:
    graph = network()
    found = breakdown(graph, baseline_schedule(graph), baseline(graph).peak, NOWHERE)
    assert dict(zip(KINDS, found.whole.sizes, strict=True)) == {
        "weights": 20, "gradients": 0, "optimizer states": 0, "activations": 205, "workspace": 7,
    }  # fmt: skip
    modules = {part.name: part for part in found.modules}
    assert list(modules) == ["h.*.mlp", "(no module)"]
    assert modules["h.*.mlp"].sizes == (20, 0, 0, 200, 7)
    assert modules["(no module)"].sizes == (0, 0, 0, 5, 0)
    assert (modules["h.*.mlp"].seconds, found.whole.seconds) == (3.0, 4.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_parts_are_the_peak(seed: int) -> None:
    graph = chain(9, seed=seed, parameters=True)
    peak = baseline(graph).peak
    assert breakdown(graph, baseline_schedule(graph), peak, NOWHERE).whole.total == peak


@pytest.mark.parametrize("seed", range(4))
def test_more_workspace_is_what_the_simulator_finds_with_it(seed: int) -> None:
    graph = chain(9, seed=seed, parameters=True)
    more = np.random.default_rng(seed).integers(0, 2, len(graph.operations)) * 1000
    worst = replace(graph, operations=replace(graph.operations, workspace=graph.operations.workspace + more))
    schedule = baseline_schedule(graph)
    per_step = np.zeros(len(schedule), np.int64)
    runs = schedule.verbs == Verb.COMPUTE
    per_step[runs] = more[schedule.targets[runs]]
    found, simulated = lifetimes(graph, schedule).with_more_workspace(per_step), lifetimes(worst, schedule)
    assert all(map(np.array_equal, found[:4], simulated[:4]))
