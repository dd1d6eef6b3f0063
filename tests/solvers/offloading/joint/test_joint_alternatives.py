"""joint's collectives overlap with computations: alternative positions keep the rules, and are worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random
from time import monotonic

import numpy as np
import pytest
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.one_queue import on_one_queue
from memplan.planner.baseline import baseline_schedule
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.incumbent import Incumbent
from memplan.solvers.offloading.joint import joint
from memplan.solvers.offloading.joint.alternatives import Together, take_place, with_alternatives
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.offloading.joint.recompute_moves import RecomputeMoves
from memplan.solvers.offloading.joint.slots import Slots, optional
from memplan.solvers.offloading.joint.state import State
from memplan.solvers.offloading.joint.timeline import ABSENT
from memplan.solvers.problem import InfeasibleError, Options, Problem
from memplan.solvers.registry.run import solve
from sharded_layers import gathered_layers
from small_offload import small_training
from strategies import with_comm

LINKED = Machine(links=Links(4.0, 4.0))


def present_in(state: State, group: Sequence[Together]) -> list[Together]:
    """Return the positions of a group at which all of its runs take place."""
    return [places for places in group if all(state.runs[place][1] != ABSENT for place in places)]


@pytest.mark.parametrize("seed", range(60))
def test_any_alternatives_keep_the_rules(seed: int) -> None:
    """The simulator accepts what is made of them, and finds the time that the search counts with.

    From seed 40 on weights are updated by row blocks, which change them one after another.
    """
    random, blocks = Random(seed), 1 if seed < 40 else 2 + seed % 2
    options = {"states": seed % 2 == 0, "host": seed % 3 == 0, "blocks": blocks}
    training = small_training(random, random.randint(3, 5), **options)
    graph = with_comm(random, training)
    drops = Drops(graph)
    found = with_alternatives(drops, Slots(drops, drops.runs).runs)
    assert [found.runs[place] for place in found.inside] == Slots(drops, drops.runs).runs
    changing = {o for o in range(len(graph.operations)) if len(graph.operations.mutates[o])}
    assert not changing & {found.runs[place][0] for place in optional(graph, found.runs)}
    state = State(graph, LINKED, 2**40, found.runs, all_offloaded=random.random() < 0.5, groups=found.groups)
    for _ in range(4):
        for group in state.groups:
            assert len({tuple(state.runs[place][0] for place in places) for places in group}) == 1
            present = present_in(state, group)
            if present and random.random() < 0.5:
                take_place(state, present[0], random.choice([each for each in group if each != present[0]]))
        outcome = state.evaluate(random.choice((0.5, 1.0, 3.0)))
        assert not outcome.excess
        figures = simulate(graph, state.schedule(outcome), machine=LINKED).figures
        assert figures.time == pytest.approx(outcome.seconds)


@pytest.mark.parametrize("seed", range(8))
def test_of_a_run_and_its_alternatives_at_most_one_takes_place(seed: int) -> None:
    """Moves that recompute add none beside another, and no operation is left without a run."""
    random = Random(seed)
    graph = gathered_layers(8, 1.0, 1.0)
    drops = Drops(graph)
    found = with_alternatives(drops, Slots(drops, drops.runs).runs)
    state = State(graph, LINKED, 2**40, found.runs, groups=found.groups)
    for group in found.groups:
        present = present_in(state, group)
        if present and random.random() < 0.7:
            take_place(state, present[0], random.choice([each for each in group if each != present[0]]))
    moves = RecomputeMoves(state, random)
    for _ in range(100):
        moves.change()
        for group in found.groups:
            assert len(present_in(state, group)) <= 1
    assert {run[0] for run in state.runs if run[1] != ABSENT} == set(range(len(graph.operations)))


def test_collectives_are_hidden_with_weights_on_the_host() -> None:
    """Of six gathers and six scatters the first and the last alone take time, as long as a forward each."""
    graph = gathered_layers(6, 1.0, 1.0, share=2)
    machine = Machine(links=Links(1000.0, 1000.0))
    budget = int(1.4 * minimum_memory(graph, machine))
    found = solve("joint", Problem(graph, budget, machine), settings={"moves": "20"})
    assert (found.schedule.verbs == Verb.OFFLOAD).any()
    assert found.figures.time == pytest.approx(1 + 6 * 1 + 6 * 2 + 1, rel=0.01)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(20))
def test_a_known_schedule_is_never_made_slower(seed: int) -> None:
    random, blocks = Random(seed), 1 if seed < 12 else 3
    graph = with_comm(random, small_training(random, 4, states=True, host=seed % 3 == 0, blocks=blocks))
    again = np.array([random.random() < 0.5 for _ in range(len(graph.operations))])
    recompute = graph.operations.recompute & again
    graph = replace(graph, operations=replace(graph.operations, recompute=recompute))
    problem = Problem(graph, int(1.2 * minimum_memory(graph, LINKED)), LINKED)
    alone = Problem(on_one_queue(graph), problem.budget, LINKED)
    try:
        known = solve("joint", alone, settings={"moves": "2"}).schedule
    except InfeasibleError:
        return
    seconds = simulate(graph, known, budget=problem.budget, machine=LINKED).figures.time
    found = joint.overlapped(problem, Options(None, joint.Settings(moves=5)), [(known, seconds)]).schedule
    assert simulate(graph, found, budget=problem.budget, machine=LINKED).figures.time <= seconds


class Watch(Incumbent):
    """A race that fails if a search goes on for long after its time limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.end = seconds, inf

    def found(self, seconds: float, who: str) -> None:
        if self.end == inf:  # code has been compiled by now
            self.end = monotonic() + self.seconds
        assert monotonic() < self.end, "the search does not end"
        super().found(seconds, who)


@pytest.mark.parametrize("known", [6, 8])
def test_many_known_schedules_end_with_the_time_limit(known: int) -> None:
    graph = gathered_layers(3, gather=1.0, compute=1.0)
    first = baseline_schedule(graph)
    seconds = simulate(graph, first, machine=LINKED).figures.time
    options = Options(0.2, joint.Settings(), race=Watch(20.0))
    found = joint.improved(Problem(graph, 2**20, LINKED), options, [(first, seconds)] * known)
    assert simulate(graph, found.schedule, machine=LINKED).figures.time <= seconds
