"""`plan solve --gap` and `--log`: what is proven, what is told while it runs, and what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from command_line import write_files
from memplan.cli.main import main
from memplan.cli.printing.race_log import RaceLog
from memplan.solvers.incumbent import IncumbentState

Plan = Callable[..., Result]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    write_files()
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def logged() -> list[dict[str, str]]:
    return list(csv.DictReader(Path("log.csv").read_text().splitlines()))


def test_within_the_gap_the_search_ends_and_says_so(plan: Plan) -> None:
    solve = ("solve", "chain.json", "--budget", "60%", "--bound-time", "0")
    found = json.loads(plan(*solve, "--gap", "40%", "--json", "--log", "log.csv").stdout)
    assert found["status"] == "within-gap"
    assert found["solver"]["options"]["gap"] == 0.4
    assert found["lower_bound"] >= 0.6 * found["time"]
    rows = logged()
    assert float(rows[-1]["best"]) == pytest.approx(found["time"])
    assert float(rows[-1]["bound"]) == pytest.approx(found["lower_bound"])
    assert float(rows[-1]["gap"]) <= 0.4
    assert all(row["who"] for row in rows)
    assert [float(row["seconds"]) for row in rows] == sorted(float(row["seconds"]) for row in rows)
    assert "proven within the gap" in plan(*solve, "--gap", "40%").stdout


@pytest.mark.scripts
def test_another_solver_logs_its_answer(plan: Plan) -> None:
    found = json.loads(
        plan(
            "solve", "chain.json", "--budget", "60%", "--solver", "rotor", "--json", "--log", "log.csv"
        ).stdout
    )
    (answer,) = [row for row in logged() if row["who"] == "rotor"]
    assert float(answer["best"]) == pytest.approx(found["time"])


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--gap", "near"), "auto: the setting gap must be a number, not 'near'"),
        (("--gap", "0.5"), "auto: gap 0.5 can be read in two ways: write 0.5% or 50%"),
        (("--set", "gap=0.25"), "auto: gap 0.25 can be read in two ways: write 0.25% or 25%"),
        (("--gap", "5"), "auto: gap 5: a gap is below 1, that is 100%: write 5%"),
        (("--gap", "100%"), "auto: gap must be at least 0 and below 1, not 1"),
        (("--gap", "-1%"), "auto: gap must be at least 0 and below 1, not -0.01"),
        (("--gap", "1%", "--set", "gap=0"), "--gap and --set gap= say the same: give one"),
        (("--gap", "1%", "--solver", "search"), "search has no setting 'gap': its settings are moves, seed"),
        (
            ("--set", "backend=dask"),
            "auto has no setting 'backend': its settings are gap, workers, moves, seed",
        ),
        (("--log", "rows.json"), "rows.json: the suffix must be .csv"),
    ],
)
def test_what_cannot_be_meant_is_refused(plan: Plan, arguments: tuple[str, ...], fault: str) -> None:
    result = plan("solve", "chain.json", "--budget", "60%", *arguments)
    assert result.exit_code == 2
    assert fault in result.stderr


def test_a_log_that_cannot_be_written_after_all_lies_beside(plan: Plan) -> None:
    Path("gone").mkdir()
    result = plan("solve", "chain.json", "--budget", "100%", "--log", "gone/no/log.csv")
    assert result.exit_code == 2
    assert "it is in memplan-" in result.stderr
    (extra,) = Path().glob("memplan-*.csv")
    assert extra.read_text().startswith("seconds,best,bound,gap,who\n")


def test_where_nothing_fits_the_log_is_written_all_the_same(plan: Plan) -> None:
    assert plan("solve", "chain.json", "--budget", "10B", "--log", "log.csv").exit_code == 3
    assert Path("log.csv").read_text().startswith("seconds,best,bound,gap,who\n")


def test_lines_are_half_a_second_apart_and_show_something_new() -> None:
    lines = list[str]()
    log = RaceLog(lines.append)
    for elapsed, best in ((0.1, 9.0), (0.2, 8.0), (0.3, 7.0), (0.8, 7.0000001), (1.4, 6.0), (1.5, 5.0)):
        log(IncumbentState(elapsed, best, 4.0, "search"))
    assert [line.split()[1] for line in lines[1:]] == ["9.0000", "7.0000", "6.0000"]
    log.close()
    log.close()
    assert [line.split() for line in lines[-1:]] == [
        ["1.5", "5.0000", "s", "4.0000", "s", "20.00%", "search"]
    ]
    assert lines[0].split() == ["seconds", "best", "bound", "gap", "source"]
