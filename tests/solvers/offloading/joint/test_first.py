"""The schedule that is there before any search: valid wherever there is one, and in a moment."""

from __future__ import annotations

from random import Random
from time import process_time

import pytest
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.auto import with_transfers
from memplan.solvers.incumbent import Incumbent
from memplan.solvers.offloading.joint import first
from memplan.solvers.offloading.joint.first import first_schedule
from memplan.solvers.problem import NotAcceptedError, Problem
from memplan.solvers.registry import run as registry
from memplan.solvers.workers.precompile import Code
from small_offload import small_training

MACHINE = Machine(links=Links(2**20, 2**20))
GRAPHS = [
    chain(6, seed=4),
    unet(2),
    layered(20, width=4),
    small_training(Random(4), 6, states=True, moving=20),
]


def within(graph: Graph, share: float, machine: Machine = MACHINE) -> Problem:
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    return Problem(graph, low + round(share * (high - low)), machine)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_it_holds(graph: Graph, share: float) -> None:
    problem = within(graph, share)
    found = first_schedule(problem, lambda: False)
    simulate(graph, found.schedule, budget=problem.budget, machine=MACHINE)


def test_where_the_host_is_too_small_for_all_activations_are_recomputed() -> None:
    graph = chain(12, uniform=True)
    machine = Machine(links=Links(2**20, 2**20), host_capacity=2**20)
    problem = within(graph, 0.8, machine)
    found = first_schedule(problem, lambda: False)
    figures = simulate(graph, found.schedule, budget=problem.budget, machine=machine).figures
    assert figures.host_peak <= 2**20
    assert figures.time > time_bound(graph), "something runs twice"


def test_nothing_is_compiled_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "CODES", (Code(lambda: False, "no:function"),))
    with pytest.raises(NotAcceptedError, match="not compiled yet"):
        first_schedule(within(GRAPHS[0], 0.5), lambda: False)


@pytest.mark.scripts
def test_three_thousand_operations_have_a_schedule_within_two_seconds() -> None:
    first_schedule(within(GRAPHS[0], 0.5), lambda: False)  # the code is loaded then
    problem = within(chain(1500, seed=1), 0.5)
    begun = process_time()
    first_schedule(problem, lambda: False)
    assert process_time() - begun < 2.0


@pytest.mark.scripts
def test_auto_has_it_before_any_member_begins() -> None:
    race = Incumbent()
    registry.solve("auto", within(GRAPHS[1], 0.5), 3.0, bound_seconds=0, race=race)
    assert race.history[0].who == with_transfers.FIRST
