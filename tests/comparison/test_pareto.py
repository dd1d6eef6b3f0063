"""`plan pareto`: the curve of time against memory, and which budget is solved next."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.cli.main import main
from memplan.comparison.file import read_rows
from memplan.comparison.pareto import LOWEST, NARROWEST, next_budget, points
from memplan.comparison.trials import Contender, Instance, Outcome, Row, Trial, row
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain, layered
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.budget import Budget
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry

ON = Instance(Path("g.json"), "g", "5a", 9, 9, baseline_time=10.0, baseline_peak=1000, resident=0)
FLOOR = 100


def answered(budget: int, time: float | None, peak: int | None = None, bound: float | None = None) -> Row:
    trial = Trial(ON, Budget(str(budget), size=budget), Contender("s", {}, "{}"), None)
    outcome = Outcome.NOT_FOUND if time is None else Outcome.OK
    found = {} if time is None else {"time": time, "peak": budget if peak is None else peak}
    return row(trial, {"outcome": outcome, "seconds": 0.0, "lower_bound": bound, **found})


ROWS = st.lists(
    st.builds(
        lambda budget, time, spare, bound: answered(budget, time, max(1, budget - spare), bound),
        st.integers(50, 1200),
        st.none() | st.floats(10.0, 30.0),
        st.integers(0, 300),
        st.none() | st.floats(1.0, 20.0) | st.just(inf),
    ),
    max_size=8,
)


@given(ROWS)
def test_a_point_has_the_fastest_that_fits_and_the_largest_bound_from_above(rows: list[Row]) -> None:
    found = points(ON, rows)
    assert [one.budget for one in found] == sorted({1000, *(one.budget for one in rows)})
    for one in found:
        fitting = [x.time for x in rows if x.time is not None and x.peak is not None and x.peak <= one.budget]
        assert one.time == min([*fitting, *([10.0] if one.budget >= 1000 else [])], default=inf)
        assert one.bound == max([x.lower_bound or 0.0 for x in rows if x.budget >= one.budget], default=0.0)
        assert one.peak <= one.budget
    assert [one.time for one in found] == sorted((one.time for one in found), reverse=True)


@given(ROWS)
def test_rows_of_other_graphs_count_for_nothing(rows: list[Row]) -> None:
    assert points(ON, [replace(one, sha256="other") for one in rows]) == points(ON, [])


def curve(steps: list[tuple[int, float]]) -> Callable[[int], Row]:
    """A solver that has exactly these schedules: (peak, time)."""

    def solved(budget: int) -> Row:
        within = [(time, peak) for peak, time in steps if peak <= budget]
        return answered(budget, *min(within)) if within else answered(budget, None)

    return solved


STEPS = st.lists(st.tuples(st.integers(FLOOR, 999), st.floats(10.0, 30.0)), max_size=12)


@settings(max_examples=60)
@given(STEPS)
def test_the_search_ends_with_every_step_of_the_curve_in_a_small_box(steps: list[tuple[int, float]]) -> None:
    solve, rows = curve(steps), list[Row]()
    while (budget := next_budget(ON, points(ON, rows), FLOOR)) is not None:
        assert FLOOR <= budget < ON.baseline_peak
        assert budget not in {one.budget for one in rows}
        rows.append(solve(budget))
        assert len(rows) < 400
    found = points(ON, rows)
    for peak, _time in steps:
        best = min(time for other, time in steps if other <= peak)
        later = min((one for one in found if one.budget >= peak), key=lambda one: one.budget)
        near = [one for one in found if one.peak <= peak + NARROWEST * ON.baseline_peak]
        assert min((one.time for one in near), default=inf) <= best + LOWEST * ON.baseline_time or (
            later.time <= best + LOWEST * ON.baseline_time
        )


def test_it_looks_in_the_middle_of_what_is_least_known() -> None:
    assert next_budget(ON, points(ON, []), FLOOR) == 99 + (1000 - 99) // 2
    rows = [answered(500, 11.0), answered(300, 19.0), answered(220, None)]
    assert next_budget(ON, points(ON, rows), FLOOR) == 300 + (500 - 300) // 2
    assert next_budget(ON, points(ON, [*rows, answered(400, 11.0)]), FLOOR) == 220 + (300 - 220) // 2


def test_what_a_peak_leaves_open_is_not_asked_again() -> None:
    """The schedule found within 900 bytes needs 200: there is nothing between."""
    assert next_budget(ON, points(ON, [answered(900, 10.0, 200)]), FLOOR) == 99 + (200 - 99) // 2


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(8), "chain.json")
    words = ["pareto", "chain.json", "--solver", "rotor"]
    return lambda *more: CliRunner().invoke(main, [*words, *(str(word) for word in more)])


@pytest.mark.scripts
def test_each_point_is_what_the_solver_finds(plan: Callable[..., Result]) -> None:
    result = plan("--points", 4, "--json")
    assert result.exit_code == 0, result.stderr
    reported, graph = json.loads(result.stdout), chain(8)
    plain = baseline(graph)
    assert (reported["min_memory"], reported["baseline_time"]) == (minimum_memory(graph), plain.time)
    assert len(reported["points"]) == 5
    solved = [one for one in reported["points"] if one["time"] is not None and one["budget"] < plain.peak]
    assert solved
    for one in solved:
        figures = registry.solve("rotor", Problem(graph, one["budget"])).figures
        assert one["time"] <= figures.time
        assert one["peak"] <= one["budget"]
        assert one["overhead"] == pytest.approx(one["time"] / plain.time - 1)
        assert one["gap"] == pytest.approx(1 - one["lower_bound"] / one["time"])


@pytest.mark.scripts
def test_it_goes_on_where_it_stood(plan: Callable[..., Result]) -> None:
    assert plan("--points", 4, "-o", "whole.csv").exit_code == 0
    assert plan("--points", 2, "-o", "parts.csv").exit_code == 0
    text = Path("parts.csv").read_bytes()
    Path("parts.csv").write_bytes(text + b"killed while it wr")
    recomputed = plan("--points", 4, "-o", "parts.csv")
    assert "2 budgets are in parts.csv already" in recomputed.stderr
    budgets = [[one.budget for one in read_rows(Path(name)).values()] for name in ("whole.csv", "parts.csv")]
    assert budgets[0] == budgets[1]
    assert len(budgets[0]) == 4
    other = plan("--points", 1, "-o", "parts.csv", "--time-limit", 9)  # another limit is another curve
    assert "already" not in other.stderr


@pytest.mark.scripts
def test_budgets_of_ones_own(plan: Callable[..., Result]) -> None:
    result = plan("--budgets", "90%,60%,1B")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[2] for line in lines[2:-2]] == ["100.0%", "90.0%", "60.0%"]
    assert lines[-2].split()[2:] == ["0.0%", "none", "impossible"]
    assert lines[-1].startswith("the minimum memory without offloading is ")


@pytest.mark.scripts
def test_a_graph_that_the_solver_does_not_take_is_said(plan: Callable[..., Result]) -> None:
    save_graph(layered(20), "chain.json")
    result = plan("--points", 2)
    assert result.exit_code == 0
    assert "rotor" in result.stdout.splitlines()[-1]


def test_errors_are_one_line(plan: Callable[..., Result]) -> None:
    Path("other.csv").write_text("a,b\n")
    for words in (
        ["-o", "other.csv"],
        ["-o", "x.txt"],
        ["--budgets", "nan"],
        ["--points", "0"],
        ["--gap", "1%"],
    ):
        result = plan(*words)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.stderr
