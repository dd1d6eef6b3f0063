"""The joint search on a language model whose states lie on the host: where updates run, what is left free."""

from random import Random

import pytest
from memplan.graphs.graph import Graph
from memplan.instances.families import decoder
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.joint import joint
from memplan.solvers.offloading.joint.anneal import Anneal
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.offloading.joint.start import Starts, other_modes
from memplan.solvers.offloading.joint.state import State
from memplan.solvers.problem import Options, Problem
from not_none import not_none

BUDGET = 12_000_000_000


@pytest.fixture(scope="module")
def phi() -> Graph:
    return decoder("phi-2", "rtx3060", 1)


@pytest.fixture(scope="module")
def state(phi: Graph) -> State:
    """A greedy start with a third of the updates on the CPU."""
    machine = not_none(phi.machine)
    starts = Starts(Drops(phi), machine, BUDGET, lambda: True)
    assert starts.attempt(starts.choice(0.5, 0.33))
    residency = not_none(starts.best).residency
    state = State(phi, machine, BUDGET, residency.runs)
    state.send_as(residency.offloaded)
    return state


def annealed(graph: Graph, moves: int) -> float:
    answer = joint.solve(Problem(graph, BUDGET), Options(None, joint.Settings(moves=moves)))
    return simulate(graph, answer.schedule, budget=BUDGET).figures.time


@pytest.mark.scripts
def test_annealing_gets_away_from_a_start_with_few_large_tensors(phi: Graph) -> None:
    """Each move costs much there: one that is too hot, or has no room for an update, ends where it began."""
    assert annealed(phi, 6) < 0.9 * annealed(phi, 0)


def test_an_update_that_comes_to_the_device_fits(phi: Graph, state: State) -> None:
    anneal = Anneal(state, state.evaluate(1.0), other_modes(phi), 0)
    came = 0
    for seed in range(60):
        anneal.random = Random(seed)
        before = [run[1] for run in state.runs]
        if anneal._switch():
            assert state.demand <= BUDGET
            changed = [place for place, run in enumerate(state.runs) if run[1] != before[place]]
            came += all(state.runs[place][1] == 0 for place in changed)
        state.rollback(0)
    assert came > 10


def test_room_for_what_leaves_is_tried(phi: Graph, state: State) -> None:
    anneal = Anneal(state, state.evaluate(1.0), other_modes(phi), 0)
    reserves = {anneal.now.reserve for _ in range(100) if anneal._time()}
    assert len(reserves) == 6
    assert max(reserves) == 2 * anneal.largest > 0
