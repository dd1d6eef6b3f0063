"""Checkmate against exhaustive searches, published optima, and the rules of the simulator."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from ctrl_c import ctrl_c
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.files.files import load_graph
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine
from memplan.instances.tiny import tiny_graphs
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem, SolverResult, Status
from memplan.solvers.recomputation.checkmate import checkmate
from memplan.solvers.recomputation.checkpointing import rotor
from small_graphs import small_graphs
from stages import least_time


def solve(graph: Graph, budget: int, time_limit: float | None = None, **settings: Any) -> SolverResult:
    chosen = checkmate.Settings(**settings)
    return checkmate.solve(Problem(graph, budget), Options(time_limit, chosen))


def figures_of(graph: Graph, budget: int) -> Figures | None:
    """Of checkmate's answer; None where it finds the budget too small."""
    try:
        answer = solve(graph, budget)
    except InfeasibleError as refusal:
        if refusal.least is None or refusal.least <= budget:
            raise AssertionError("refused a budget that it calls enough") from refusal
        return None
    assert answer.status == Status.OPTIMAL
    return simulate(graph, answer.schedule, budget=budget).figures


def budgets_of(graph: Graph, step: int = 1) -> range:
    return range(minimum_memory(graph) - 1, baseline(graph).peak + 1, step)


@pytest.mark.scripts
@settings(max_examples=120)
@given(small_graphs())
def test_equals_exhaustive_search_at_every_budget(graph: Graph) -> None:
    """And so is monotone in the budget, and its least budget is the least."""
    for budget in budgets_of(graph):
        best, found = least_time(graph, budget), figures_of(graph, budget)
        assert (found is None) == (best is None)
        if found is not None:
            assert found.time == pytest.approx(best)


@settings(max_examples=40)
@given(small_graphs(), st.integers(10**6, 10**9), st.integers(0, 10**9))
def test_large_sizes_do_not_blur_the_budget(graph: Graph, scale: int, seed: int) -> None:
    """Sizes of many digits, beyond a solver's tolerance of 1e-6, and budgets that fit to the byte."""
    random = Random(seed)
    for x, size in enumerate(graph.tensors.bytes.tolist()):
        graph.tensors.bytes[x] = size * scale + random.choice((0, 1, 4, 1000))
    found_at = [figures_of(graph, budget) for budget in budgets_of(graph, scale)]
    for budget in sorted({found.peak for found in found_at if found is not None})[:3]:
        for tight in (budget - 1, budget):
            best, found = least_time(graph, tight), figures_of(graph, tight)
            assert (found is None) == (best is None)
            if found is not None:
                assert found.time == pytest.approx(best)


def test_picture_several_outputs() -> None:
    """
    a ─▶ big, small ─▶ b (reads big) ─▶ c (reads small) ─▶ d (reads big, again)

    Tensors are saved one by one: within 5 bytes `big` goes before c runs and is made again, not `small`.
    """
    draft = Draft("two outputs")
    big, small, y, z, end = (
        draft.tensor(name, size) for name, size in zip("bsyze", (3, 1, 1, 3, 1), strict=True)
    )
    draft.operation("a", time=2, writes=[big, small])
    draft.operation("b", time=1, reads=[big], writes=[y])
    draft.operation("c", time=1, reads=[small, y], writes=[z])
    draft.operation("d", time=1, reads=[big, y], writes=[end])
    graph = draft.graph()
    answer = solve(graph, 5)
    assert simulate(graph, answer.schedule, budget=5).figures.time == 7.0
    assert baseline(graph).peak == 8
    assert figures_of(graph, 4) is None


@pytest.mark.scripts
def test_tiny_graphs_of_the_corpus() -> None:
    """Never below the optimum over all orders. Compared where every node leads to a target: all must run."""
    equal = above = refused = 0
    for graph, _min_memory, _seconds, optima, whole in tiny_graphs():
        for budget, best in optima if whole else ():
            if best is None:
                continue
            found = figures_of(graph, budget)
            assert found is None or found.time >= best - 1e-9
            refused += found is None
            equal += found is not None and found.time <= best + 1e-9
            above += found is not None and found.time > best + 1e-9
    assert (equal, above, refused) == (137, 110, 20)


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("name", "percent", "overhead"),
    [
        ("fcn8", 90, 0.0294),
        ("fcn8", 80, 0.1361),
        ("fcn8", 70, 0.8915),
        ("segnet", 60, 0.423),
        ("unet", 80, 1.98),
    ],
)
def test_optima_proved_for_the_files_order(public: Path, name: str, percent: int, overhead: float) -> None:
    """70 to 77 operations; the figures (% of the plain time) are those of CP-SAT (instances/public)."""
    graph = load_graph(public / f"{name}.json")
    plain = baseline(graph)
    found = figures_of(graph, plain.peak * percent // 100)
    assert found is not None
    assert round(100 * (found.time / plain.time - 1), 2) == round(overhead, 2)


@settings(max_examples=10)
@given(st.integers(3, 7), st.integers(0, 10**6), st.booleans(), st.integers(50, 95))
def test_never_above_rotor_on_chains(blocks: int, seed: int, fast_forward: bool, percent: int) -> None:
    graph = chain(blocks, seed=seed, parameters=False, fast_forward=fast_forward)
    budget = baseline(graph).peak * percent // 100
    try:
        answer = rotor.solve(Problem(graph, budget), Options())
    except InfeasibleError:
        assume(False)
    found = figures_of(graph, budget)
    assert found is not None
    assert found.time <= simulate(graph, answer.schedule).figures.time * (1 + 1e-9)


@pytest.mark.scripts
def test_what_fits_plainly_is_not_searched() -> None:
    graph = layered(5000)
    plain = baseline(graph)
    answer = solve(graph, plain.peak)
    assert answer.status == Status.OPTIMAL
    assert answer.lower_bound == time_bound(graph) == pytest.approx(plain.time)


@pytest.mark.scripts
def test_a_time_limit_gives_a_schedule_within_the_budget() -> None:
    graph = chain(20, seed=0)
    budget = baseline(graph).peak * 45 // 100
    answer = solve(graph, budget, time_limit=6)
    figures = simulate(graph, answer.schedule, budget=budget).figures
    assert answer.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert answer.lower_bound is not None
    assert answer.lower_bound <= figures.time


def test_no_time_at_all_is_no_proof_of_anything() -> None:
    graph = layered(40)
    with pytest.raises(checkmate.NotFoundError, match=r"found no schedule .* in its time, nor"):
        solve(graph, baseline(graph).peak * 8 // 10, time_limit=0.0)


@pytest.mark.scripts
@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_ctrl_c_gives_the_best_so_far() -> None:
    graph = chain(25, seed=1)
    budget = baseline(graph).peak * 45 // 100
    with ctrl_c(4.0):
        answer = solve(graph, budget, time_limit=60)
    assert answer.status == Status.FEASIBLE
    assert simulate(graph, answer.schedule, budget=budget)


def test_the_refusal_names_the_least_budget_and_the_floor() -> None:
    graph = unet(3)
    with pytest.raises(InfeasibleError) as raised:
        solve(graph, baseline(graph).peak // 2)
    least, min_memory = raised.value.least, raised.value.min_memory
    assert least is not None
    assert min_memory == minimum_memory(graph) <= least
    assert figures_of(graph, least) is not None
    assert figures_of(graph, least - 1) is None


def test_the_devices_capacity_counts_like_the_budget() -> None:
    graph = chain(4, parameters=False)
    plain = baseline(graph)
    machine = Machine(device_capacity=plain.peak * 8 // 10)
    answer = checkmate.solve(Problem(graph, plain.peak, machine), Options())
    assert simulate(graph, answer.schedule, machine=machine).figures.time > plain.time


def test_a_program_too_large_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkmate, "MOST_ENTRIES", 100)
    monkeypatch.setattr(checkmate, "EVICTION_SECONDS", 0.0)
    with pytest.raises(NotAcceptedError, match="40 operations of layered-40-seed0 has more than 100 "):
        solve(layered(40), baseline(layered(40)).peak * 8 // 10)
    graph = chain(8)
    budget = baseline(graph).peak * 8 // 10
    assert solve(graph, budget).status == Status.FEASIBLE  # rotor's


def test_progress_and_the_bound_for_the_files_order_are_reported() -> None:
    lines: list[str] = []
    graph = layered(30, seed=1)
    budget = baseline(graph).peak * 8 // 10
    checkmate.solve(Problem(graph, budget), Options(report=lines.append))
    assert lines[-1].endswith("s")
    assert "no schedule in traced order is faster than" in lines[-1]


def test_another_backend_finds_the_same() -> None:
    pytest.importorskip("gurobipy")
    graph = chain(4, seed=5, parameters=False)
    budget = baseline(graph).peak * 7 // 10
    times = [
        simulate(graph, solve(graph, budget, backend=backend).schedule).figures.time
        for backend in ("highs", "gurobi", "PULP_CBC_CMD")
    ]
    assert times == pytest.approx(times[:1] * 3)
