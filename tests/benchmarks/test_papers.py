"""The papers' figures: each runs on a small case, and the page says what rows.csv holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "papers"))

from curves import svg, ticks  # noqa: E402
from figure import Case, Figure, Missing, Plot, Values  # noqa: E402
from memplan.solvers.problem import NotAcceptedError  # noqa: E402
from page import page, picture  # noqa: E402
from registry import FIGURES, PAPERS  # noqa: E402
from rows import append, load, measured, missing, spelled  # noqa: E402

ROWS = load(ROOT / "benchmarks" / "papers" / "rows.csv")


@pytest.mark.sampled(15)
@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_a_figure_runs_on_a_small_case(figure: Figure) -> None:
    own = figure.measure(figure.small, 2.0)
    shown = {key for case in figure.cases for key in case.published}
    assert shown <= set(own)
    assert not figure.plot or set(figure.plot.y) <= set(own)


def test_names_are_different() -> None:
    assert len(FIGURES) == sum(len(figures) for figures, _missing in PAPERS.values())


def test_the_page_is_what_the_rows_say() -> None:
    assert (ROOT / "benchmarks" / "results" / "papers.md").read_text() == page(PAPERS, ROWS)
    for figure in FIGURES.values():
        file = ROOT / "benchmarks" / "results" / "papers" / f"{figure.name}.svg"
        assert (file.read_text() if file.exists() else "") == picture(figure, ROWS)


def test_every_row_is_of_a_case() -> None:
    cases = {(figure.name, spelled(case.given)) for figure in FIGURES.values() for case in figure.cases}
    assert set(ROWS) <= cases


def square(given: Values, _seconds: float) -> Values:
    if given["x"] == 3:
        raise NotAcceptedError("no square of 3")
    return {"y": int(given["x"]) ** 2}


SQUARES = Figure(
    "squares", "squares", "Table 1", "1 and 4.", "none.", [Case({"x": x}, {"y": x * x}) for x in (1, 2, 3)],
    square, {"x": 1}, plot=Plot("x", ["y"]),
)  # fmt: skip


def test_a_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    append(path, measured(SQUARES, SQUARES.cases[0], 1.0))
    assert list(missing(SQUARES, load(path))) == list(SQUARES.cases[1:])
    reported = page({"A": ([SQUARES], [])}, load(path))
    assert "Not run (2): x: 2; x: 3" in reported
    for case in missing(SQUARES, load(path)):
        append(path, measured(SQUARES, case, 1.0))
    reported = page({"A": ([SQUARES], [])}, load(path))
    assert "| 2 | 4 | 4 |" in reported
    assert "no square of 3" in reported
    assert "Not run" not in reported


def test_a_curve_goes_through_its_points() -> None:
    drawn = svg({"a": [(1, 0), (3, 10)]}, {"a": [(2, 5)]}, "x", "y")
    assert '<path d="M62.0 298.0L520.0 30.0"' in drawn
    assert 'd="M287.0 160.0l8 8' in drawn


def test_words_on_the_axis_have_no_line_between_them() -> None:
    drawn = svg({"a": [(0, 0), (1, 10)]}, {}, "x", "y", words=["one", "two"])
    assert ">one</text>" in drawn
    assert ">two</text>" in drawn
    assert "L" not in drawn.partition("<rect")[2]


def test_models_on_one_picture_have_a_curve_each() -> None:
    def measure(given: Values, _seconds: float) -> Values:
        return {"a, s": given["x"], "b, s": "does not fit", "size": "13B"}

    cases = [Case({"model": model, "x": x}) for model in ("one", "two") for x in (1, 2)]
    plot = Plot("x", ["a, s", "b, s"], by=["model"], axis="iteration, s")
    figure = Figure("f", "f", "Table 1", "", "", cases, measure, {"model": "one", "x": 1}, plot=plot)
    rows = {("f", spelled(case.given)): measured(figure, case, 1.0) for case in cases}
    drawn = picture(figure, rows)
    assert [name in drawn for name in (">one a<", ">two a<", " b<", ">iteration, s<")] == [
        True,
        True,
        False,
        True,
    ]
    assert picture(replace(figure, plot=Plot("x", ["size"], by=["model"])), rows)


def test_what_could_be_simulated_is_told_apart() -> None:
    reported = page({"A": ([], [Missing("Figure 1", "a GPU"), Missing("Figure 2", "no solver", True)])}, {})
    assert "Not had by simulation:\n\n- Figure 1: a GPU\n" in reported
    assert "Could be simulated, is not yet:\n\n- Figure 2: no solver\n" in reported


def test_ticks_hold_the_range() -> None:
    for low, high in ((0.0, 1.0), (3.2, 3.9), (5.0, 5.0), (0.0, 12345.0), (-2.0, 7.0)):
        found = ticks(low, high)
        assert found[0] <= low <= high <= found[-1]
        assert 2 <= len(found) <= 12
