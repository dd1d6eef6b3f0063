"""A tour of memplan, in the order of its story. Read this first."""

from __future__ import annotations

from pathlib import Path

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.file import load_schedule, save_schedule
from memplan.planner.schedule.schedule import Schedule, compute, delete
from memplan.planner.schedule.sequence import in_default_mode, schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, Problem, Status
from memplan.solvers.registry import run as registry


def two_layers() -> Graph:
    """A model is a graph of operations and the tensors between them.

        x ─▶ F1 ─a─▶ F2 ─b─▶ loss ─gb─▶ B2 ─ga─▶ B1 ─▶ (nothing left)
                     a and b are read again by B2, B1 needs a
    Each tensor takes 10 bytes, each operation 1 s.
    """
    draft = Draft("two layers")
    x = draft.tensor("x", 10, Kind.INPUT)
    a, b = draft.tensor("a", 10), draft.tensor("b", 10)
    gb, ga = draft.tensor("gb", 10, Kind.GRADIENT), draft.tensor("ga", 10, Kind.GRADIENT)
    dw = draft.tensor("dw", 10, Kind.PARAMETER_GRADIENT)
    draft.operation("F1", time=1, reads=[x], writes=[a])
    draft.operation("F2", time=1, reads=[a], writes=[b])
    draft.operation("loss", time=1, reads=[b], writes=[gb], phase=Phase.LOSS, recompute=False)
    draft.operation("B2", time=1, reads=[gb, b], writes=[ga], phase=Phase.BACKWARD)
    draft.operation("B1", time=1, reads=[ga, a], writes=[dw], phase=Phase.BACKWARD)
    return draft.graph([dw])


def test_1_plain_pytorch_is_a_schedule() -> None:
    """It runs everything once, in order, and frees each tensor after its last use."""
    graph = two_layers()
    a, b, gb = (graph.tensor_index[name] for name in ("a", "b", "gb"))
    steps = list(baseline_schedule(graph))
    assert steps[:4] == [compute(0), compute(1), compute(2), compute(3)]
    assert set(steps[4:6]) == {delete(gb), delete(b)}
    assert steps[6] == compute(4)
    assert delete(a) in steps[7:]
    plain = baseline(graph)
    assert (plain.time, plain.peak) == (5, 50)  # in B2: x, a, b, gb and the new ga


def test_2_forgetting_and_recomputing_saves_memory() -> None:
    """F1 runs again: `a` need not stay while b and gb are there."""
    graph = two_layers()
    figures = simulate(graph, schedule_of(graph, in_default_mode([0, 1, 2, 3, 0, 4]))).figures
    assert (figures.time, figures.peak) == (6, 40)


def test_3_the_simulator_refuses_what_could_not_run() -> None:
    graph = two_layers()
    forgetful = Schedule.of([compute(0), delete(graph.tensor_index["a"]), compute(1)])
    with pytest.raises(InvalidScheduleError) as refusal:
        simulate(graph, forgetful)
    assert (refusal.value.step, refusal.value.tensor, refusal.value.rule) == (2, "a", "reads-present")
    with pytest.raises(InvalidScheduleError, match="capacity"):
        simulate(graph, baseline_schedule(graph), budget=49)


def test_4_a_solver_finds_the_schedule() -> None:
    """Any solver, by name; its answer has passed the simulator. Here there is nothing better than 6 s."""
    graph = two_layers()
    assert minimum_memory(graph) == 40
    for solver in ("rotor", "checkmate"):
        solution = registry.solve(solver, Problem(graph, budget=40), bound_seconds=60)
        assert (solution.figures.time, solution.figures.peak) == (6, 40)
        assert solution.status == Status.OPTIMAL
        assert solution.lower_bound == pytest.approx(6)
    assert time_bound(graph) == 5


def test_5_an_impossible_budget_is_said_so() -> None:
    with pytest.raises(InfeasibleError) as refusal:
        registry.solve("rotor", Problem(two_layers(), budget=39))
    assert refusal.value.least == refusal.value.min_memory == 40


def test_6_graphs_and_schedules_are_files(tmp_path: Path) -> None:
    graph = two_layers()
    save_graph(graph, tmp_path / "graph.yaml")
    solution = registry.solve("rotor", Problem(graph, budget=40))
    save_schedule(tmp_path / "schedule.json", graph, solution.schedule, budget=40)
    recomputed = load_graph(tmp_path / "graph.yaml")
    file = load_schedule(tmp_path / "schedule.json", recomputed)
    assert simulate(recomputed, file.schedule, budget=file.budget).figures == solution.figures


def test_7_a_real_model_trains_within_the_budget_with_the_same_results() -> None:
    """Traced, measured, solved, run: loss and gradients are those of plain PyTorch, bit for bit."""
    torch = pytest.importorskip("torch")
    import memplan

    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU()) for _ in range(8)]
    model, batch = torch.nn.Sequential(*layers), torch.randn(1024, 128)

    step = memplan.optimize(model, (batch,), budget="60%", loss_fn=lambda output: output.square().mean())
    loss = step(batch)
    loss.backward()
    planned = [parameter.grad for parameter in model.parameters()]

    model.zero_grad()
    plain_loss = model(batch).square().mean()
    plain_loss.backward()
    assert torch.equal(loss, plain_loss)
    assert all(torch.equal(g, p.grad) for g, p in zip(planned, model.parameters(), strict=True))
