"""Moccasin against Checkmate, published optima, the rules of the simulator, and the optima of tiny graphs."""

from __future__ import annotations

import os
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path
from random import Random

import pytest
from ctrl_c import ctrl_c
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memplan.graphs.errors import InputError, MissingPackageError
from memplan.graphs.files.files import load_graph
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.instances.tiny import tiny_graphs
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.schedule.schedule import Verb
from memplan.planner.schedule.sequence import in_default_mode, schedule_of
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.solvers.milp.result import MilpStatus
from memplan.solvers.problem import InfeasibleError, Options, Problem, SolverResult, Status
from memplan.solvers.recomputation.checkmate import checkmate
from memplan.solvers.recomputation.checkmate.checkmate import NotFoundError
from memplan.solvers.recomputation.moccasin import moccasin
from memplan.solvers.recomputation.moccasin.search import Limits, Question, Searcher
from memplan.solvers.recomputation.moccasin.times import whole_times
from memplan.solvers.workers import process
from small_graphs import small_graph, small_graphs

pytest.importorskip("ortools")


def solve(graph: Graph, budget: int, time_limit: float | None = None, **chosen: int) -> SolverResult:
    return moccasin.solve(Problem(graph, budget), Options(time_limit, moccasin.Settings(**chosen)))


def figures_of(graph: Graph, budget: int, **chosen: int) -> Figures | None:
    """Of moccasin's answer, which claims to be optimal; None where it finds the budget too small."""
    try:
        answer = solve(graph, budget, **chosen)
    except InfeasibleError as refusal:
        if refusal.least is None or refusal.least <= budget:
            raise AssertionError("refused a budget that it calls enough") from refusal
        return None
    assert answer.status == Status.OPTIMAL
    return simulate(graph, answer.schedule, budget=budget).figures


def most_runs(answer: SolverResult) -> int:
    return max(Counter(step.target for step in answer.schedule if step.verb == Verb.COMPUTE).values())


@pytest.mark.scripts
@settings(max_examples=8)
@given(small_graphs(), st.integers(0, 100))
def test_equals_checkmate_where_copies_are_enough(graph: Graph, percent: int) -> None:
    """Several outputs, contributions, workspaces, changes in place, modes: the same model of memory."""
    min_memory, peak = minimum_memory(graph), baseline(graph).peak
    budget = min_memory + (peak - min_memory) * percent // 100
    found = figures_of(graph, budget, copies=len(graph.operations), most=len(graph.operations))
    try:
        best = checkmate.solve(Problem(graph, budget), Options())
    except InfeasibleError:
        assert found is None
    else:
        assert found is not None
        assert found.time == pytest.approx(simulate(graph, best.schedule).figures.time)


@pytest.mark.scripts
@settings(max_examples=6)
@example(small_graph(Random(838618)), 4096)
@given(small_graphs(), st.integers(1, 10**6))
def test_every_solution_of_the_program_holds(graph: Graph, seed: int) -> None:
    """Whatever it finds at any budget passes the simulator, within the budget; so at random sizes."""
    random = Random(seed)
    graph.tensors.bytes[:] = [int(size) * 1000 + random.choice((0, 1, 7)) for size in graph.tensors.bytes]
    always = int(graph.tensors.bytes[graph.resident].sum())
    min_memory, peak = minimum_memory(graph), baseline(graph).peak
    times: list[float] = []
    with Searcher(graph) as searcher:
        for budget in sorted({min_memory + (peak - min_memory) * step // 5 for step in range(6)}):
            found = searcher.search(Question(budget - always, 3, [], False, Limits(threads=1)))
            if found.runs is None:
                assert found.status == MilpStatus.INFEASIBLE
                assert not times
                continue
            figures = simulate(graph, schedule_of(graph, found.runs), budget=budget).figures
            assert figures.time <= found.objective * (1 + 1e-9) + 1e-9
            assert found.bound <= figures.time * (1 + 1e-9) + 1e-9
            times.append(found.objective)
    assert times == sorted(times, reverse=True)


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("name", "percent", "overhead"),
    [("fcn8", 70, 0.8915), ("unet", 80, 1.98)],
)
def test_optima_proved_for_the_files_order(public: Path, name: str, percent: int, overhead: float) -> None:
    """Figures (% of the plain time): instances/catalogue.yaml, most for two runs of an operation."""
    graph = load_graph(public / f"{name}.json")
    plain = baseline(graph)
    found = figures_of(graph, plain.peak * percent // 100, most=2)
    assert found is not None
    assert round(100 * (found.time / plain.time - 1), 2) == round(overhead, 2)


@pytest.mark.scripts
@pytest.mark.parametrize(("percent", "overhead"), [(90, 0.8942), (80, 4.6562)])
def test_random_layers(percent: int, overhead: float) -> None:
    """checkmate's program proves the same."""
    graph = layered(60)
    plain = baseline(graph)
    found = figures_of(graph, plain.peak * percent // 100)
    assert found is not None
    assert 100 * (found.time / plain.time - 1) == pytest.approx(overhead, abs=1e-4)


@pytest.mark.scripts
def test_tiny_graphs_of_the_corpus() -> None:
    """Never below the optimum over all orders; as good in most cases. Compared where every node must run."""
    equal = above = refused = 0
    for graph, _floor, _seconds, optima, every_one in tiny_graphs()[::14]:
        with Searcher(graph) as searcher:
            for budget, best in optima if every_one else ():
                if best is None:
                    continue
                found = searcher.search(Question(budget, 3, [], False, Limits(threads=1)))
                refused += found.runs is None
                equal += found.runs is not None and found.objective <= best + 1e-9
                above += found.runs is not None and found.objective > best + 1e-9
                assert found.runs is None or found.objective >= best - 1e-9
    assert equal >= above
    assert refused < equal


def test_more_copies_are_never_slower() -> None:
    graph = chain(6, uniform=True, parameters=False, fast_forward=False)
    budget = baseline(graph).peak * 60 // 100
    answers = [solve(graph, budget, copies=most, most=most) for most in (2, 3)]
    assert all(most_runs(answer) <= most for most, answer in zip((2, 3), answers, strict=True))
    times = [simulate(graph, answer.schedule).figures.time for answer in answers]
    assert times == sorted(times, reverse=True)


def test_one_copy_is_the_plain_schedule_or_nothing() -> None:
    graph = unet(2)
    plain, always = baseline(graph), int(graph.tensors.bytes[graph.resident].sum())
    with Searcher(graph) as searcher:
        outcomes = [
            searcher.search(Question(budget - always, 1, [], False, Limits())).status
            for budget in (plain.peak - 1, plain.peak)
        ]
    assert outcomes == [MilpStatus.INFEASIBLE, MilpStatus.OPTIMAL]


@pytest.mark.scripts
def test_a_time_limit_gives_the_best_so_far() -> None:
    graph = unet(9, seed=1)
    budget = baseline(graph).peak * 75 // 100
    answer = solve(graph, budget, time_limit=4.0)
    assert simulate(graph, answer.schedule, budget=budget)
    assert answer.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert answer.lower_bound == time_bound(graph)


def test_no_time_at_all_is_no_proof_of_anything() -> None:
    graph = layered(60)
    with pytest.raises(NotFoundError, match=r"moccasin found no schedule .* in its time, nor"):
        solve(graph, baseline(graph).peak * 7 // 10, time_limit=0.0)


def test_a_search_that_is_given_up_does_not_answer_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells what it has once it comes to itself: nothing, and that would be the next one's answer."""
    graph = chain(3)
    capacity = baseline(graph).peak
    with Searcher(graph) as searcher:
        with monkeypatch.context() as patched:
            patched.setattr(process, "LAST_SECONDS", -1.0)
            given_up = searcher.search(Question(capacity, 2, [], False, Limits(0.0, threads=1)))
        assert given_up.runs is None
        found = searcher.search(Question(capacity, 2, [], False, Limits(threads=1)))
    assert found.status == MilpStatus.OPTIMAL
    assert found.runs == in_default_mode(range(len(graph.operations)))


@pytest.mark.scripts
@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_ctrl_c_gives_the_best_so_far() -> None:
    graph = chain(25, seed=1)
    budget = baseline(graph).peak * 45 // 100
    with ctrl_c(4.0):
        answer = solve(graph, budget, time_limit=60)
    assert answer.interrupted
    assert answer.status == Status.FEASIBLE
    assert simulate(graph, answer.schedule, budget=budget)


def test_the_bound_for_its_own_formulation_is_reported_only() -> None:
    lines: list[str] = []
    graph = layered(30, seed=1)
    budget = baseline(graph).peak * 8 // 10
    answer = moccasin.solve(Problem(graph, budget), Options(report=lines.append))
    assert "with at most 3 runs of an operation, no schedule is faster than" in lines[-1]
    assert answer.lower_bound == time_bound(graph)


def test_without_or_tools_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, package: str | None = None) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(moccasin, "find_spec", missing)
    with pytest.raises(MissingPackageError, match=r"not installed: pip install 'memplan\[moccasin\]'$"):
        solve(chain(2), 10**9)


@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        ({"copies": 0}, "copies must be 1 or more, not 0"),
        ({"copies": 4}, "most must be at least copies, which is 4, not 3"),
        ({"threads": -1}, "threads must be from 0 to 256, not -1"),
        ({"seed": -1}, "seed must be from 0 to 2,147,483,647, not -1"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(chosen: dict[str, int], line: str) -> None:
    with pytest.raises(InputError) as refusal:
        moccasin.Settings(**chosen)
    assert str(refusal.value) == line


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_times_are_whole_numbers_of_a_unit(seconds: list[float]) -> None:
    whole_numbers, unit = whole_times(seconds)
    for second, number in zip(seconds, whole_numbers, strict=True):
        assert number * unit <= second * (1 + 1e-12)
        assert number * unit >= second - unit * (1 + 1e-9)


def test_times_with_a_common_divisor_are_exact() -> None:
    assert whole_times([0.3, 0.45, 1.5]) == ([2, 3, 10], 0.15)
    assert whole_times([4e12, 6e12]) == ([2, 3], 2e12)
    assert whole_times([]) == ([], 1.0)
