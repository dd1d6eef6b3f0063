"""`plan bench --filter` and `--dry-run`, and its exit code if nothing is solved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.comparison.file import read_rows
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain, layered

Bench = Callable[..., Result]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(4), "c.json")
    save_graph(layered(8), "l.json")
    words = ["bench", "c.json", "l.json", "--bound-time", "0"]
    return lambda *more: CliRunner().invoke(main, [*words, *map(str, more)])


ALL = ("--solvers", "store-all,chen-sqrt", "--budgets", "100%,60%")


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [(None, 8), ("store-all", 4), ("CHAIN*store", 2), ("/60%/", 4), ("chain*/100%/chen-sqrt", 1)],
)
def test_rows_are_listed_and_nothing_is_solved(bench: Bench, pattern: str | None, rows: int) -> None:
    chosen = () if pattern is None else ("--filter", pattern)
    listed = bench(*ALL, *chosen, "--dry-run", "--json", "-o", "rows.csv")
    assert listed.exit_code == 0, listed.stderr
    found = json.loads(listed.stdout)
    assert len(found["rows"]) == rows
    assert found["seconds_at_most"] == 60.0 * rows
    assert not Path("rows.csv").exists()
    assert f"{rows} of {rows} rows to solve" in bench(*ALL, *chosen, "--dry-run").stdout


def test_filtered_rows_alone_are_solved_and_known_as_solved(bench: Bench) -> None:
    chosen = (*ALL, "--filter", "chain*100%*store-all", "-o", "rows.csv")
    assert bench(*chosen).exit_code == 0
    (row,) = read_rows(Path("rows.csv")).values()
    assert (row.solver, row.budget_text) == ("store-all", "100%")
    found = json.loads(bench(*ALL, "-o", "rows.csv", "--dry-run", "--json").stdout)
    assert [one["solver"] for one in found["rows"] if one["solved_before"]] == ["store-all"]
    assert found["seconds_at_most"] == 60.0 * 7


def test_a_filter_that_no_row_has_is_refused(bench: Bench) -> None:
    result = bench(*ALL, "--filter", "rotor")
    assert result.exit_code == 2
    assert "--filter rotor: no row of 8 matches: names are GRAPH/BUDGET/SOLVER, like chain-4" in result.stderr


@pytest.mark.scripts
def test_nothing_solved_and_nothing_proven_is_no_success(bench: Bench) -> None:
    found = bench("--solvers", "store-all", "--budgets", "80%")
    assert found.exit_code == 3
    assert found.stderr.splitlines() == [
        "plan: rows are not saved: give -o rows.csv",
        "plan: error: none of 2 rows has a schedule, or a proof that there is none",
    ]
    assert bench("--solvers", "store-all", "--budgets", "80%,100%").exit_code == 0
    # below the minimum memory of all schedules
    assert (
        bench("--solvers", "rotor", "--budgets", "1%", "--filter", "chain", "--bound-time", "5").exit_code
        == 0
    )
