"""Names as cells of CSV files: nothing in them acts on a terminal or is computed by a spreadsheet."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from memplan.comparison.file import append_row, prepare, read_rows
from memplan.comparison.run import run as run_trials
from memplan.comparison.trials import Trial, contender, instance
from memplan.graphs.cells import cell_text
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.planner.budget import parse_budget


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("resnet", "resnet"),
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1", "'+1"),
        ("@x", "'@x"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\tb\r\nc", "a\\tb\\r\\nc"),
        ("größe", "größe"),
    ],
)
def test_a_name_as_a_cell(name: str, cell: str) -> None:
    assert cell_text(name) == cell


def test_a_table_of_plan_bench_has_no_name_that_acts(tmp_path: Path) -> None:
    """And its rows are found again."""
    named = replace(chain(3), name="=1+1\x1b[2J")
    save_graph(named, tmp_path / "g.json")
    trial = Trial(instance(tmp_path / "g.json"), parse_budget("100%"), contender("store-all", {}), None)
    table = tmp_path / "rows.csv"
    prepare(table)
    (row,) = run_trials([trial], 1, 0.0, [])
    append_row(table, row)
    assert "\x1b" not in table.read_text()
    (line,) = csv.DictReader(table.read_text().splitlines())
    assert line["graph"] == "'=1+1\\x1b[2J"
    assert list(read_rows(table)) == [trial.key]
