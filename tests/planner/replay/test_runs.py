"""Seconds and peak of sequences, compiled, beside the simulator's."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain, unet
from memplan.graphs.graph import Graph, Mode
from memplan.graphs.machine import Machine
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.replay.runs import figures_of_runs, schedule_of_runs
from memplan.planner.schedule.schedule import DEFAULT_MODE
from memplan.planner.schedule.sequence import Run, schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.candidates import candidate_of_runs, simulate_candidate
from small_graphs import small_graphs


def repeated(graph: Graph, random: Random, repeats: int) -> list[Run]:
    """The plain order, some operations again anywhere behind their first run, in any mode on the device."""
    runs = [(k, DEFAULT_MODE) for k in range(len(graph.operations))]
    for _ in range(repeats):
        operation = random.randrange(len(graph.operations))
        mode = random.randint(0, len(graph.operations.modes.get(operation, ())))
        place = random.randint(runs.index((operation, DEFAULT_MODE)) + 1, len(runs))
        runs.insert(place, (operation, mode))
    return runs


def agrees(graph: Graph, runs: list[Run]) -> bool:
    """Whether the simulator takes them; then both say the same, and the schedules are the same."""
    schedule, own = schedule_of(graph, runs), figures_of_runs(graph, runs)
    if own is not None:
        assert list(schedule_of_runs(graph, runs)) == list(schedule)
    try:
        theirs = simulate(graph, schedule, machine=Machine()).figures
    except InvalidScheduleError:
        return False
    if any(mode.on_host or mode.reads_host for modes in graph.operations.modes.values() for mode in modes):
        assert own is None
    else:
        assert own is not None
        assert own[:2] == (pytest.approx(theirs.time, rel=1e-12), theirs.peak)
    return True


@settings(max_examples=150)
@given(small_graphs(), st.integers(0, 10**6))
def test_the_same_as_the_simulators(graph: Graph, seed: int) -> None:
    """Shared contributions, several outputs, changes in place, modes, workspaces, launches."""
    random = Random(seed)
    assert agrees(graph, repeated(graph, random, 0))
    for repeats in (1, 2, 4, 8):
        agrees(graph, repeated(graph, random, repeats))


@pytest.mark.parametrize("graph", [chain(6, seed=1), unet(3)], ids=lambda graph: graph.name)
def test_many_sequences_with_repeats_hold(graph: Graph) -> None:
    held = sum(agrees(graph, repeated(graph, Random(seed), 6)) for seed in range(60))
    assert held >= 20


def test_what_it_can_not_tell() -> None:
    graph = chain(4)
    whole = [(k, DEFAULT_MODE) for k in range(len(graph.operations))]
    assert figures_of_runs(graph, whole) is not None
    assert figures_of_runs(graph, whole[1:]) is None
    with pytest.raises(InvalidScheduleError):
        candidate_of_runs(graph, whole[1:])
    draft = Draft("host")
    y = draft.tensor("y", 1)
    draft.operation("F", time=1, writes=[y], modes=[Mode("cpu", 2, 0, (y,), on_host=True)])
    assert figures_of_runs(draft.graph([y]), [(0, DEFAULT_MODE)]) is None


def test_a_tensor_of_many_parts() -> None:
    """More than a number has bits: the simulator is asked."""
    draft = Draft("sum")
    total = draft.tensor("total", 8)
    for k in range(70):
        draft.operation(f"add{k}", time=1, writes=[total])
    graph = draft.graph([total])
    runs = [(k, DEFAULT_MODE) for k in range(70)]
    assert figures_of_runs(graph, runs) is None
    found = candidate_of_runs(graph, runs)
    assert (found.time, found.peak) == (70.0, 8)


def test_a_candidates_schedule_is_made_when_it_is_asked_for() -> None:
    graph = unet(2)
    runs = [(k, DEFAULT_MODE) for k in range(len(graph.operations))]
    found, known = candidate_of_runs(graph, runs), simulate_candidate(graph, schedule_of(graph, runs))
    assert (found.time, found.peak) == (pytest.approx(known.time), known.peak)
    assert list(found.schedule) == list(known.schedule)
    assert found.schedule is found.schedule
