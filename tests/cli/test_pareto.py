"""Rows of `plan pareto`, on the screen and in JSON, of points that are given."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest
from memplan.cli import pareto
from memplan.cli.exits import Exit
from memplan.comparison.pareto import Point
from memplan.comparison.trials import Contender, Instance, Outcome, Row, Trial, row
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.graphs.units import duration, format_bytes
from memplan.planner.budget import Budget

ON = Instance(Path("g.json"), "g", "5a", 9, 9, baseline_time=10.0, baseline_peak=1000, resident=0)


@pytest.mark.parametrize(
    ("point", "cells"),
    [
        (Point(1000, 10.0, 1000), ["100.0%", duration(10.0), "+0.00%", "", "", ""]),
        (Point(500, 12.0, 480, 10.0), ["50.0%", duration(12.0), "+20.00%", duration(10.0), "16.67%", 15]),
        (Point(250, 14.0, 250, 14.0), ["25.0%", duration(14.0), "+40.00%", duration(14.0), "0.00%", 30]),
        (Point(20, inf, 20, 11.0), ["2.0%", "none", "", "", "", ""]),
        (Point(10, inf, 10, inf), ["1.0%", "none", "", "impossible", "", ""]),
    ],
)
def test_a_bar_stands_for_the_seconds_above_the_baseline(point: Point, cells: list[Any]) -> None:
    *words, bar = cells
    bar = "#" * round(pareto.BARS * bar / 30) if bar else ""
    assert pareto._cells(ON, point, 4.0, "#") == [format_bytes(point.budget), *words, bar]
    assert pareto._cells(ON, point, 0.0, "#")[-1] == ""  # no schedule takes longer than the baseline


@pytest.mark.parametrize(
    ("point", "document"),
    [
        (Point(500, 12.0, 480, 10.0), (12.0, 480, pytest.approx(0.2), 10.0, pytest.approx(1 / 6))),
        (Point(500, 12.0, 480), (12.0, 480, pytest.approx(0.2), None, None)),
        (Point(10, inf, 10, inf), (None, None, None, "inf", None)),
        (Point(20, inf, 20, 11.0), (None, None, None, 11.0, None)),
    ],
)
def test_what_is_not_known_is_null(point: Point, document: tuple[object, ...]) -> None:
    names = ("time", "peak", "overhead", "lower_bound", "gap")
    wanted = {"budget": point.budget, **dict(zip(names, document, strict=True))}
    assert pareto._document(ON, point) == wanted


class Printed:
    """An output that keeps what it is given."""

    blocks, as_json = False, False

    def __init__(self) -> None:
        self.lines, self.notes, self.document = list[str](), list[str](), dict[str, Any]()

    def result(self, document: dict[str, Any], lines: Any) -> None:
        self.document, self.lines = document, [line.plain for line in lines]

    def note(self, line: str) -> None:
        self.notes.append(line)


def solved(budget: int, outcome: Outcome, **found: Any) -> Row:
    trial = Trial(ON, Budget(str(budget), size=budget), Contender("s", {}, "{}"), None)
    return row(trial, {"outcome": outcome, "seconds": 0.0, **found})


def test_the_curve_is_told_with_what_went_wrong(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    save_graph(chain(2), path)
    on = replace(ON, path=path)
    rows = [
        solved(500, Outcome.OK, time=12.0, peak=480, lower_bound=None),
        solved(300, Outcome.NOT_FOUND, message="nothing was found"),
        solved(200, Outcome.FAULT, message="it failed"),
        solved(100, Outcome.TIMEOUT, message="it was late"),
    ]
    printed = Printed()
    pareto._tell(cast("Any", on), rows, 77, False, cast("Any", printed), saved=False)
    assert printed.notes == ["answers are not saved: give -o curve.csv"]
    assert [point["budget"] for point in printed.document["points"]] == [100, 200, 300, 500, 1000]
    assert (printed.document["min_memory"], printed.document["interrupted"]) == (77, False)
    assert printed.lines[0].startswith("g: baseline 10")
    assert "the minimum memory without offloading is 77" in " ".join(printed.lines)
    assert [line for line in printed.lines if "it " in line] == ["200 B: it failed", "100 B: it was late"]
    assert not any("nothing was found" in line for line in printed.lines)
    printed = Printed()
    with pytest.raises(SystemExit) as end:
        pareto._tell(cast("Any", on), rows, 77, True, cast("Any", printed), saved=True)
    assert end.value.code == Exit.INTERRUPTED
    assert printed.notes == ["interrupted: 4 budgets are solved"]
