"""What exact solvers have proven, as bounds with the class of schedules they hold for, and as effort."""

from __future__ import annotations

from pathlib import Path

import pytest
from direct_access import with_direct_gradients
from memplan.comparison import trial
from memplan.comparison.trials import Trial, contender, instance
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain, unet
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.budget import parse_budget
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.residency.residency import residency_bound
from memplan.solvers.problem import Options, Problem, SolverResult, Status
from memplan.solvers.recomputation.checkmate import checkmate, rk_checkmate
from memplan.solvers.recomputation.checkpointing import rotor
from memplan.solvers.recomputation.moccasin import moccasin
from memplan.solvers.registry import run as registry


def at(graph: Graph, share: float, machine: Machine | None = None) -> Problem:
    low, high = minimum_memory(graph), baseline(graph).peak
    return Problem(graph, int(low + share * (high - low)), machine)


def seconds(problem: Problem, answer: SolverResult) -> float:
    return simulate(problem.graph, answer.schedule, budget=problem.budget).figures.time


def test_where_modes_use_the_host_a_bound_holds_for_the_device_alone() -> None:
    """A gradient that is a result may be made on the host: with less device memory, without links."""
    plain = chain(4, seed=1, fast_forward=False)
    for graph, everywhere in ((plain, True), (with_direct_gradients(plain, 1e12), False)):
        answer = checkmate.solve(at(graph, 0.5, Machine()), Options(20.0, checkmate.Settings(threads=1)))
        assert [bound.transfers for bound in answer.bounds] == [everywhere]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_narrower_class_has_no_smaller_bound(seed: int, share: float) -> None:
    """All three proven: at most two runs of each operation, any number, and the residency program."""
    problem = at(chain(5, seed=seed, fast_forward=False), share)
    general = checkmate.solve(problem, Options(20.0, checkmate.Settings(gap=0.0, threads=1)))
    twice = moccasin.solve(problem, Options(20.0, moccasin.Settings(copies=2, most=2, threads=1)))
    assert general.status == twice.status == Status.OPTIMAL
    (one,), (other,) = general.bounds, twice.bounds
    assert (one.order, one.form, one.transfers) == ("file", "", True)
    assert (other.order, other.form) == ("file", "at most 2 runs of an operation")
    assert one.seconds == pytest.approx(seconds(problem, general), rel=1e-6)
    assert one.seconds <= other.seconds * (1 + 1e-6) <= seconds(problem, twice) * (1 + 3e-6)
    assert residency_bound(problem.graph, problem.budget).bound.seconds <= one.seconds * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_rotors_bound_holds_for_persistent_schedules_of_its_chain(seed: int) -> None:
    problem = at(chain(8, seed=seed), 0.4)
    answer = rotor.solve(problem, Options(None, rotor.Settings()))
    (bound,) = answer.bounds
    assert not bound.general
    assert bound.form.startswith("persistent, of ")
    assert (answer.status == Status.OPTIMAL) == (seconds(problem, answer) <= bound.seconds * (1 + 1e-9))


def test_a_solution_tells_all_classes_and_transfers_may_beat_them() -> None:
    problem = at(unet(1, seed=2), 0.3, Machine(links=Links(2**18, 2**18)))
    solved = registry.solve("checkmate", problem, 20.0)
    assert solved.bounds[0].general
    assert all(not bound.transfers for bound in solved.bounds[1:] if bound.name == "checkmate")
    assert solved.effort is not None
    assert solved.effort.gap <= 1e-6


def test_a_limit_at_the_loss_is_part_of_the_class() -> None:
    problem = at(chain(6, seed=3), 0.6)
    settings = rk_checkmate.Settings(gap=0.0, threads=1, save=0.6)
    (bound,) = rk_checkmate.solve(problem, Options(20.0, settings)).bounds
    assert bound.form.endswith("B kept at the loss")


def test_rows_carry_nodes_and_the_gap_to_the_own_bound(tmp_path: Path) -> None:
    graph = chain(6, seed=1)
    save_graph(graph, tmp_path / "chain.json")
    there = instance(tmp_path / "chain.json")
    budget = parse_budget(str(at(graph, 0.4).budget))

    def ending(solver: str) -> trial.Ending:
        return trial.answer(Trial(there, budget, contender(solver, {}), 20.0), graph, bound_seconds=0.0)

    exact = ending("checkmate")
    assert exact["nodes"] >= 0
    assert 0.0 <= exact["own_gap"] <= 1e-6
    assert "own_gap" not in ending("rotor")
    assert exact["lower_bound"] < exact["traced_order_bound"] <= exact["time"] * (1 + 1e-6)
    assert "file_order_bound" not in ending("rotor")
