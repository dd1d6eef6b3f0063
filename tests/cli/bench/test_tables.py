"""Documents of `plan bench --json`: matches with published results, beaten records, changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click
import pytest
from memplan.cli.bench.changes import change_document, compared, refuse_worse, tolerance_argument
from memplan.cli.bench.tables import match_document, record_document
from memplan.cli.exits import CheckFailedError
from memplan.comparison.best_known import Beaten, Best
from memplan.comparison.changes import TOLERANCE
from memplan.comparison.published import Match, Published, load_published, matches, published_budgets
from memplan.comparison.trials import Contender, Instance, Outcome, Row, Trial, row
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import write_document
from memplan.planner.budget import Budget

ON = Instance(Path("g.json"), "g", "5a", 9, 9, baseline_time=10.0, baseline_peak=1000, resident=0)


def solved(budget: int, time: float | None, solver: str = "s") -> Row:
    trial = Trial(ON, Budget(str(budget), size=budget), Contender(solver, {}, "{}"), None)
    found = {} if time is None else {"time": time, "peak": budget}
    outcome = Outcome.NOT_FOUND if time is None else Outcome.OK
    return row(trial, {"outcome": outcome, "seconds": 0.5, **found})


def test_a_match_has_both_sides_or_null() -> None:
    one = Match("g", 50.0, Published("checkmate", 20.0, 3.0), solved(500, 11.0))
    assert match_document(one) == {
        "graph": "g",
        "budget_percent": 50.0,
        "method": "checkmate",
        "overhead_percent": 20.0,
        "seconds": 3.0,
        "solver": "s",
        "our_overhead_percent": pytest.approx(10.0),
        "our_seconds": 0.5,
        "at_least_as_good": True,
    }
    nothing = match_document(Match("g", 50.0, Published(), None))
    assert nothing == {
        **dict.fromkeys(match_document(one)),
        "graph": "g",
        "budget_percent": 50.0,
        "at_least_as_good": True,
    }


@pytest.mark.parametrize(
    ("published", "time", "as_good"),
    [(10.0, 11.0, True), (9.96, 11.0, True), (9.94, 11.0, False), (None, 11.0, True), (10.0, None, False)],
)
def test_published_percentages_are_rounded(
    published: float | None, time: float | None, as_good: bool
) -> None:
    ours = None if time is None else solved(500, time)
    assert Match("g", 50.0, Published("m", published), ours).at_least_as_good == as_good


def test_a_record_is_beaten_or_refuted() -> None:
    best = Best("g", "5a", "50%", 500, 12.0, 11.0, "before", 1.0, "c", "2026-01-01")
    assert record_document(Beaten(solved(500, 11.4, "now"), best)) == {
        "graph": "g",
        "budget": 500,
        "solver": "now",
        "time": 11.4,
        "best_time": 12.0,
        "best_solver": "before",
        "faster_percent": pytest.approx(5.0),
        "refuted": False,
    }
    assert record_document(Beaten(solved(500, 10.9), best))["refuted"]


def test_a_change_has_both_outcomes_and_a_worse_row_fails() -> None:
    earlier = [solved(500, 11.0), solved(400, 12.0), solved(300, None)]
    now = [solved(500, 12.1), solved(400, 12.0), solved(300, 20.0)]
    assert compared(None, now, 0.0) == []
    found = compared(earlier, now, 0.001)
    by_budget = {one["budget"]: one for one in map(change_document, found)}
    worse = by_budget[500]
    assert (worse["old_time"], worse["time"], worse["verdict"]) == (11.0, 12.1, "worse")
    assert (worse["old_outcome"], worse["outcome"]) == (Outcome.OK, Outcome.OK)
    assert worse["percent"] == pytest.approx(10.0)
    with pytest.raises(CheckFailedError, match=rf"1 of {len(found)} rows are worse"):
        refuse_worse(found)
    refuse_worse([one for one in found if one.row.budget != 500])


def test_a_tolerance_is_a_share() -> None:
    context, parameter = click.Context(click.Command("bench")), cast("Any", None)
    assert tolerance_argument(context, parameter, None) == TOLERANCE
    found = [tolerance_argument(context, parameter, text) for text in ("0", "1%", "0.5")]
    assert found == [0.0, 0.01, 0.5]
    for text in ("much", "1", "100%", "-0.1"):
        with pytest.raises(click.BadParameter):
            tolerance_argument(context, parameter, text)


def test_published_results_are_the_best_within_the_budget(tmp_path: Path) -> None:
    """Of two as fast the one that was found sooner; a peak up to its rounding above the budget counts."""
    path = tmp_path / "published.json"
    rows = [
        {"graph": "g", "budget_percent": 50, "a": [20, 50.04, 3], "b": [20, 50, 2], "c": [1, 50.06, 1]},
        {"graph": "g", "budget_percent": 40, "a": [30, 40, None], "b": None, "peak_bytes": 2000},
        {"graph": "g", "budget_percent": 30, "a": [1, 31, 1]},
        {"graph": "other", "budget_percent": 50, "a": [5, 50, 1]},
    ]
    write_document({"rows": rows}, path)
    found = load_published(path)
    assert found["g", 50.0] == Published("b", 20.0, 2.0)
    assert found["g", 40.0] == Published("a", 30.0, None, 2000)
    assert found["g", 30.0] == Published()
    assert [one.text for one in published_budgets("g", found)] == ["50%", "800B", "30%"]
    for broken in ({"rows": [{"graph": "g"}]}, {"rows": [{**rows[0], "a": [1]}]}, {}):
        write_document(broken, path)
        with pytest.raises(InputError, match="not a table of published results"):
            load_published(path)


def test_rows_are_matched_by_what_their_budget_is_a_share_of() -> None:
    published = {("g", 50.0): Published("a", 10.0), ("g", 30.0): Published("b", 20.0)}
    rows = [solved(500, 12.0), solved(500, 11.0), solved(500, None), solved(300, None), solved(700, 9.0)]
    found = {one.percent: one for one in matches(rows, published)}
    assert {percent: one.solved and one.solved.time for percent, one in found.items()} == {
        50.0: 11.0,
        30.0: None,
    }
    larger = {("g", 25.0): Published("a", 10.0, peak=2000)}
    (one,) = matches([solved(500, 12.0)], larger)
    assert (one.percent, one.published) == (25.0, larger["g", 25.0])
