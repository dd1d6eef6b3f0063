"""`plan bench --compare`: what has become better or worse than an earlier table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from memplan.comparison.changes import Verdict, changes
from memplan.comparison.file import append_row, prepare, read_rows
from memplan.comparison.tables import change_tables
from memplan.comparison.trials import COLUMNS, Outcome, Row


def verdicts(old: list[Row], new: list[Row], tolerance: float = 0.001) -> list[str]:
    return [change.verdict.value for change in changes(old, new, tolerance)]


def test_verdicts(rows: Callable[..., Row]) -> None:
    """Of 110 s, 0.1 % are 0.11 s."""
    at = rows("a", "g", 60, 10.0)
    assert verdicts([at], [rows("a", "g", 60, 10.1)]) == ["equal"]
    assert verdicts([at], [rows("a", "g", 60, 10.2)]) == ["worse"]
    assert verdicts([at], [rows("a", "g", 60, 9.8)]) == ["better"]
    assert verdicts([at], [rows("a", "g", 60, 12.0)], 0.05) == ["equal"]
    none, fault = rows("a", "g", 60, None), replace(rows("a", "g", 60, None), outcome=Outcome.FAULT)
    assert verdicts([at], [none]) == verdicts([none], [fault]) == verdicts([at], [fault]) == ["worse"]
    assert verdicts([none], [at]) == verdicts([fault], [none]) == ["better"]
    assert verdicts([none], [none]) == verdicts([fault], [fault]) == ["equal"]
    assert verdicts([at], [rows("a", "g", 50, 10.0)]) == ["new", "gone"]


def test_turned_around_better_is_worse(rows: Callable[..., Row]) -> None:
    overheads = [None, 0.0, 5.0, 5.001, 80.0]
    other = {"better": "worse", "worse": "better", "equal": "equal"}
    for x in overheads:
        for y in overheads:
            earlier, later = [rows("a", "g", 60, x)], [rows("a", "g", 60, y)]
            assert verdicts(later, earlier) == [other[word] for word in verdicts(earlier, later)]


def test_which_rows_meet(rows: Callable[..., Row]) -> None:
    """A solver's settings and time limit may be others now, unless there are several of them."""
    old = [rows("a", "g", 60, 10.0, 1.0, '{"moves": 5}')]
    new = [replace(rows("a", "g", 60, 10.0, 1.0, '{"moves": 5, "more": 1}'), time_limit=9.0)]
    assert verdicts(old, new) == ["equal"]
    both = [*old, rows("a", "g", 60, 10.0, 1.0, '{"moves": 6}')]
    assert verdicts(both, new) == ["new", "gone", "gone"]
    assert verdicts(both, both) == ["equal", "equal"]
    seeds = [rows("a", "g", 60, 10.0 + seed, 1.0, f'{{"seed": {seed}}}') for seed in (0, 1, 2)]
    assert verdicts(seeds, seeds[1:]) == ["equal", "equal", "gone"]


def test_those_that_changed_most_are_told(rows: Callable[..., Row]) -> None:
    old = [rows("a", "g", 60, 10.0), rows("a", "g", 50, 10.0), rows("b", "g", 50, 10.0)]
    new = [rows("a", "g", 60, 21.0), rows("a", "g", 50, None)]
    (reported,) = change_tables(changes(old, new))
    assert reported.title == "against the earlier table: 0 better, 2 worse, 0 equal, 0 new, 1 gone"
    assert reported.rows == [
        ["worse", "10.00%", "infeasible", "", "a on g at 50%"],
        ["worse", "10.00%", "21.00%", "+10.00%", "a on g at 60%"],
    ]
    assert not list(change_tables([]))
    many = changes(
        [rows("a", f"g{k}", 60, 10.0) for k in range(30)], [rows("a", f"g{k}", 60, 20.0) for k in range(30)]
    )
    (reported,) = change_tables(many)
    assert (len(reported.rows), reported.hint) == (20, "and 10 more that are worse or better")


@pytest.mark.scripts
def test_bench_compares_and_its_exit_code_tells(bench: Callable[..., Result]) -> None:
    words = ["graphs/chain.json", "--solvers", "rotor", "--budgets", "80%", "--bound-time", "0"]
    assert bench(*words, "-o", "old.csv").exit_code == 0
    same = bench(*words, "--compare", "old.csv", "--json")
    assert same.exit_code == 0
    assert [one["verdict"] for one in json.loads(same.stdout)["changes"]] == [Verdict.EQUAL]
    (row,) = read_rows(Path("old.csv")).values()
    assert row.time is not None
    prepare(Path("faster.csv"))
    append_row(Path("faster.csv"), replace(row, time=row.time / 2))
    worse = bench(*words, "--compare", "faster.csv")
    assert worse.exit_code == 5
    assert "1 of 1 rows are worse than in the earlier table" in worse.stderr
    assert "100.00%" in worse.stdout
    assert bench(*words, "--compare", "faster.csv", "--tolerance", "99%").exit_code == 5
    prepare(Path("near.csv"))
    append_row(Path("near.csv"), replace(row, time=row.time / 1.01))
    assert bench(*words, "--compare", "near.csv", "--tolerance", "2%").exit_code == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--compare", "none.csv"], "none.csv: no such file"),
        (["--compare", "graphs/chain.json"], "not a table of plan bench"),
        (["--tolerance", "little"], "'little' is no share, like 0.1% or 0.001"),
        (["--tolerance", "100%"], "it must be at least 0 and below 1"),
    ],
)
def test_errors_are_one_line(bench: Callable[..., Result], words: list[str], line: str) -> None:
    result = bench("graphs", *words)
    assert result.exit_code == 2
    assert line in result.stderr


def test_a_table_with_earlier_names_of_columns_is_read_compared_and_continued(
    bench: Callable[..., Result],
) -> None:
    words = ["graphs/chain.json", "--solvers", "rotor", "--bound-time", "0"]
    assert bench(*words, "--budgets", "80%", "-o", "new.csv").exit_code == 0
    head, row = Path("new.csv").read_text().splitlines()
    for earlier, now in {
        "plain_time": "baseline_time",
        "plain_peak": "baseline_peak",
        "file_order_bound": "traced_order_bound",
        "file_order_gap_percent": "traced_order_gap_percent",
    }.items():
        assert now in head.split(",")
        head = head.replace(now, earlier)
    Path("old.csv").write_text(f"{head}\n{row}\n")
    assert read_rows(Path("old.csv")) == read_rows(Path("new.csv"))
    compared = bench(*words, "--budgets", "80%", "-o", "new.csv", "--compare", "old.csv")
    assert compared.exit_code == 0, compared.stderr
    assert bench(*words, "--budgets", "90%", "-o", "old.csv").exit_code == 0
    assert [found.budget_text for found in read_rows(Path("old.csv")).values()] == ["80%", "90%"]
    assert Path("old.csv").read_text().startswith(head)


def test_a_table_of_an_earlier_version_is_read_but_not_gone_on_with(
    bench: Callable[..., Result], rows: Callable[..., Row]
) -> None:
    words = ["graphs/chain.json", "--solvers", "rotor", "--budgets", "80%", "--bound-time", "0"]
    assert bench(*words, "-o", "new.csv").exit_code == 0
    (row,) = read_rows(Path("new.csv")).values()
    assert row.history[-1].time == row.time
    assert COLUMNS[-3:] == ("seed", "history", "allow")
    lines = Path("new.csv").read_text().splitlines()
    Path("old.csv").write_text("".join(line.rsplit(",", 3)[0] + "\n" for line in lines))
    assert list(read_rows(Path("old.csv")).values()) == [replace(row, history=())]
    refused = bench(*words, "-o", "old.csv")
    assert refused.exit_code == 2
    assert "old.csv: of an earlier version, with fewer columns" in refused.stderr
    spoilt = "".join([*Path("new.csv").read_text().splitlines(keepends=True)[:1], lines[1][:-1] + "x,\n"])
    Path("spoilt.csv").write_text(spoilt)
    assert bench(*words, "--compare", "spoilt.csv").exit_code == 2
