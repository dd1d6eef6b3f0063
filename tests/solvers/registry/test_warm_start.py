"""A search that starts from a schedule: never slower than it, and refused if it is not one of the problem."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Link, Links, Machine
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.simulator.simulate import figures_of
from memplan.solvers.incumbent import Incumbent
from memplan.solvers.problem import InfeasibleError, Options, Problem, Status, ValidatedSolution
from memplan.solvers.recomputation.search import search
from memplan.solvers.registry import run as registry
from memplan.solvers.registry.catalogue import entry, module_of

NOTE = "nothing faster than the start was found: the answer is the start"


def solved(
    solver: str, problem: Problem, start: ValidatedSolution | None = None, **settings: str
) -> ValidatedSolution:
    return registry.solve(
        solver,
        problem,
        20.0,
        settings,
        bound_seconds=0.0,
        start=None if start is None else start.schedule,
    )


def problem_of(graph: Graph, share: float) -> Problem:
    return Problem(graph, int(share * baseline(graph).peak))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("solver", ["auto", "rotor", "chen-sqrt", "rk-rotor", "search", "tw-remat"])
@pytest.mark.parametrize("share", [0.6, 0.75])
def test_no_answer_is_slower_than_the_start(solver: str, share: float) -> None:
    """The optimum by rotor is where all others end that start from it; their own is never worse for it."""
    problem = problem_of(chain(10), share)
    best = solved("rotor", problem)
    found = solved(solver, problem, best)
    assert found.figures.time <= best.figures.time
    assert found.figures == figures_of(problem.graph, found.schedule, budget=problem.budget)
    if found.schedule is best.schedule:
        assert NOTE in found.notes
        assert found.status in (Status.FEASIBLE, Status.WITHIN_GAP, Status.OPTIMAL)


def test_a_faster_answer_replaces_the_start() -> None:
    problem = problem_of(chain(10), 0.75)
    slow, fast = solved("chen-sqrt", problem), solved("rotor", problem)
    assert slow.figures.time > fast.figures.time
    found = solved("rotor", problem, slow)
    assert found.figures.time == fast.figures.time
    assert NOTE not in found.notes


def test_an_optimum_of_a_smaller_class_is_not_claimed_for_the_start() -> None:
    """store-all has nothing within the budget: the answer is the start, and no optimum."""
    problem = problem_of(chain(10), 0.6)
    best = solved("rotor", problem)
    with pytest.raises(InfeasibleError):
        solved("store-all", problem)
    found = solved("store-all", problem, best)
    assert found.schedule is best.schedule
    assert found.status is Status.FEASIBLE
    assert found.notes[-1] == NOTE


def test_the_race_has_the_start_first() -> None:
    problem = problem_of(chain(10), 0.6)
    best, race = solved("rotor", problem), Incumbent()
    registry.solve("auto", problem, 20.0, {}, bound_seconds=0.0, race=race, start=best.schedule)
    assert race.history[0].who == "start"
    assert race.history[0].best == best.figures.time
    assert all(later.best <= earlier.best for earlier, later in pairwise(race.history))


def test_the_search_goes_on_from_the_start() -> None:
    """With a single move it is no slower: from the traced order it is."""
    problem = problem_of(layered(40), 0.75)
    good = solved("search", problem, moves="300")
    few = search.Settings(moves=1, seed=0, replicas=1)
    with_start = search.solve(problem, Options(5.0, few, start=good.schedule))
    assert figures_of(problem.graph, with_start.schedule).time <= good.figures.time * (1 + 1e-9)


@pytest.mark.scripts
def test_a_start_with_transfers_is_kept() -> None:
    graph = layered(20)
    machine = Machine(links=Links(d2h=Link(1e9), h2d=Link(1e9)))
    problem = replace(problem_of(graph, 0.6), machine=machine)
    best = solved("joint", problem)
    for solver in ("joint", "auto"):
        assert solved(solver, problem, best).figures.time <= best.figures.time


def test_ctrl_c_leaves_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(chain(10), 0.6)
    best = solved("rotor", problem)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module_of(entry("rotor")), "solve", interrupted)
    found = solved("rotor", problem, best)
    assert found.interrupted
    assert found.schedule is best.schedule


def test_what_is_no_start_is_refused() -> None:
    graph = chain(10)
    problem = problem_of(graph, 0.6)
    everything = baseline_schedule(graph)
    with pytest.raises(
        InputError, match=r"the start needs .* of the device, the budget is .*: give a larger"
    ):
        registry.solve("rotor", problem, start=everything)
    with pytest.raises(InputError, match="the start is no schedule of this graph and machine"):
        registry.solve("rotor", problem, start=baseline_schedule(chain(4)))
    machine = Machine(links=Links(d2h=Link(1e9), h2d=Link(1e9)))
    limited = Problem(graph, baseline(graph).peak, machine, allow=("offload",))
    assert registry.solve("store-all", limited, start=everything).figures.peak == limited.budget
    recomputed = registry.solve("rotor", problem).schedule
    with pytest.raises(InputError, match="it does not go with allow, which leaves out what it uses: the st"):
        registry.solve("store-all", limited, start=recomputed)
