"""Rk-Checkmate against checkmate, and its limit at the loss."""

from __future__ import annotations

from random import Random

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, unet
from memplan.graphs.graph import Graph, Phase
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, Options, Problem, SolverResult, Status
from memplan.solvers.recomputation.checkmate import checkmate, rk_checkmate
from memplan.solvers.recomputation.checkmate.rk_checkmate import saved_bytes
from memplan.solvers.registry import run as registry
from small_graphs import small_graph


def answer(graph: Graph, budget: int, save: float = 1.0) -> SolverResult:
    return rk_checkmate.solve(Problem(graph, budget), Options(settings=rk_checkmate.Settings(save=save)))


def budgets(graph: Graph) -> list[int]:
    low, high = minimum_memory(graph), baseline(graph).peak
    return sorted({low + (high - low) * step // 3 for step in range(4)})


def outcome(solver: object, graph: Graph, budget: int) -> tuple[float, Status] | int | None:
    """Time and status, or the least budget of a refusal."""
    try:
        found: SolverResult = solver.solve(Problem(graph, budget), Options())  # type: ignore[attr-defined]
    except InfeasibleError as refusal:
        return refusal.least
    return round(simulate(graph, found.schedule, budget=budget).figures.time, 9), found.status


@pytest.mark.parametrize("seed", range(40))
def test_without_a_limit_at_the_loss_its_optimum_is_checkmates(seed: int) -> None:
    graph = small_graph(Random(seed))
    for budget in budgets(graph):
        assert outcome(rk_checkmate, graph, budget) == outcome(checkmate, graph, budget)


@pytest.mark.parametrize("graph", [chain(4, seed=2), chain(5, seed=3), unet(2)], ids=lambda g: g.name)
def test_the_limit_at_the_loss_is_kept_and_costs_time(graph: Graph) -> None:
    budget = baseline(graph).peak
    loss = graph.operations.phase.tolist().index(Phase.LOSS)
    free = budget - int(graph.tensors.bytes[graph.resident].sum())
    times: list[float] = []
    for save in (1.0, 0.6, 0.4, 0.2):
        try:
            found = answer(graph, budget, save)
        except InfeasibleError:
            continue
        runs = [(step.target, step.where) for step in found.schedule if step.verb == Verb.COMPUTE]
        assert saved_bytes(graph, runs, loss) <= save * free
        assert found.status == Status.OPTIMAL
        times.append(simulate(graph, found.schedule, budget=budget).figures.time)
    assert len(times) > 1
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_saved_bytes_are_what_is_there_while_the_loss_runs() -> None:
    """x (batch) → a (8 B) → b (4 B) → loss (writes g, 2 B) → backward reads a, g: a and b are saved."""
    draft = Draft("three")
    a, b, g, d = (draft.tensor(name, size) for name, size in (("a", 8), ("b", 4), ("g", 2), ("d", 1)))
    draft.operation("A", time=1, writes=[a])
    draft.operation("B", time=1, reads=[a], writes=[b])
    draft.operation("L", time=1, reads=[b], writes=[g], phase=Phase.LOSS, recompute=False)
    draft.operation("D", time=1, reads=[a, g], writes=[d], phase=Phase.BACKWARD)
    graph = draft.graph([d])
    assert saved_bytes(graph, [(k, 0) for k in range(4)], 2) == 12
    assert saved_bytes(graph, [(k, 0) for k in (0, 1, 2, 0, 3)], 2) == 4
    tight = answer(graph, 14, 0.5)
    assert [step.target for step in tight.schedule if step.verb == Verb.COMPUTE] == [0, 1, 2, 0, 3]


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="rk-checkmate: save must be from 0 to 1, not 2"):
        registry.chosen_settings("rk-checkmate", {"save": "2"})
    draft = Draft("lossless")
    draft.operation("A", time=1, writes=[draft.tensor("a", 8)])
    with pytest.raises(InputError, match="lossless has no loss"):
        answer(draft.graph(), 8, 0.5)
