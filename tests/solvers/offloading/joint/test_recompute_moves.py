"""What is made again changes inside the search: any slots, switched at random, make schedules that hold."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from joint_graphs import GRAPHS, LINKED
from memplan.graphs.files.files import load_graph
from memplan.graphs.machine import Links, Machine
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.offloading.joint.recompute_moves import RecomputeMoves
from memplan.solvers.offloading.joint.slots import Slots, optional
from memplan.solvers.offloading.joint.start import host_modes
from memplan.solvers.offloading.joint.state import State
from memplan.solvers.offloading.joint.timeline import ABSENT
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve


def figures_of(state: State) -> tuple[float, int]:
    outcome = state.evaluate(1.0)
    figures = simulate(state.graph, state.schedule(outcome), machine=LINKED).figures
    assert figures.time == pytest.approx(outcome.seconds, rel=1e-6)
    return figures.time, state.demand


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", GRAPHS)
def test_whatever_takes_place_the_schedule_holds_and_is_taken_back(name: str, seed: int) -> None:
    graph, random = GRAPHS[name], Random(seed)
    drops, hosts = Drops(graph), host_modes(graph)
    slots = Slots(drops, drops.runs)
    assert [slots.runs[place] for place in slots.places] == drops.runs
    given = set(slots.places)
    assert all(mode == ABSENT for place, (_o, mode) in enumerate(slots.runs) if place not in given)
    state = State(graph, LINKED, 2**50, slots.runs, all_offloaded=random.random() < 0.5)
    baseline = State(graph, LINKED, 2**50, drops.runs, all_offloaded=bool(state.offloaded))
    assert figures_of(state) == pytest.approx(figures_of(baseline)), "absent runs change nothing"
    state.switch(dict.fromkeys(slots.recomputed({x for x in drops.saved if random.random() < 0.4}), 0))
    state.switch(
        {p: hosts[o] for p, (o, _m) in enumerate(state.runs) if o in hosts and random.random() < 0.5}
    )
    recomputed = RecomputeMoves(state, random)
    for _ in range(6):
        before, runs_before, steps = figures_of(state), list(state.runs), state.steps(1.0, 0.0)[0].tolist()
        mark = state.mark()
        for _ in range(random.randint(1, 4)):
            recomputed.change()
            figures_of(state)
        if random.random() < 0.5:
            state.rollback(mark)
            assert (figures_of(state), state.runs) == (before, runs_before)
            assert state.steps(1.0, 0.0)[0].tolist() == steps


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_made_again_can_stay_and_what_stays_be_made_again(name: str) -> None:
    """With no runs absent, switched off one by one, the plain runs come out, and the plain peak."""
    graph = GRAPHS[name]
    drops = Drops(graph)
    baseline = drops.runs
    state = State(graph, LINKED, 2**50, Slots(drops, baseline).runs)
    least = state.demand
    recomputed = RecomputeMoves(state, Random(0))
    assert recomputed.optional == optional(graph, state.runs)
    for _ in range(60):
        recomputed.change()
        least = min(least, state.demand)
    assert least < State(graph, LINKED, 2**50, baseline).demand
    state.switch(dict.fromkeys(recomputed.optional, ABSENT))
    assert [run for run in state.runs if run[1] != ABSENT] == baseline
    state.keep(list(state.offloaded))
    assert figures_of(state)[1] == State(graph, LINKED, 2**50, baseline).demand


def test_there_is_no_slot_behind_a_change() -> None:
    """A weight that is updated: what reads it can't run again afterwards."""
    graph = GRAPHS["trained"]
    runs = Slots(Drops(graph), in_default_mode(range(len(graph.operations)))).runs
    changed = set[int]()
    for operation, mode in runs:
        if mode == ABSENT:
            assert not changed & {*graph.read_lists[operation]}
        else:
            changed.update(graph.mutate_lists[operation])
    assert any(mode == ABSENT for _operation, mode in runs)


def test_an_offloaded_tensor_of_which_one_contribution_alone_is_recomputed(tmp_path: Path) -> None:
    """The producer whose tensors the loss does not need has no slot."""
    file = tmp_path / "graph.json"
    file.write_text(
        """{"format": "plan-graph/1", "name": "two producers", "tensors": [
        {"name": "batch", "bytes": 1152, "kind": "input"}, {"name": "w", "bytes": 896, "kind": "parameter"},
        {"name": "a", "bytes": 832, "kind": "activation"}, {"name": "g", "bytes": 768, "kind": "gradient"},
        {"name": "sum", "bytes": 832, "kind": "gradient"},
        {"name": "dw", "bytes": 896, "kind": "parameter_gradient"}], "operations": [
        {"name": "F", "phase": "forward", "time": 1, "reads": [], "writes": ["a", "sum"]},
        {"name": "loss", "phase": "forward", "time": 1, "reads": [], "writes": ["g"]},
        {"name": "B0", "phase": "forward", "time": 1, "reads": ["w"], "writes": ["sum"]},
        {"name": "B1", "phase": "forward", "time": 1, "reads": ["a", "w"], "writes": ["dw"]},
        {"name": "B2", "phase": "forward", "time": 1, "reads": ["sum"], "writes": []}], "results": []}"""
    )
    problem = Problem(load_graph(file), 3776, Machine(links=Links(0.5, 1.0)))
    solution = solve("joint", problem, 0.2, bound_seconds=0)
    assert solution.figures.peak <= 3776
