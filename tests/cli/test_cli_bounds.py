"""The bounds that `plan solve` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import layered
from memplan.planner.bounds import time_bound
from memplan.planner.schedule.file import load_schedule


def solve(*arguments: str) -> Result:
    command = ["solve", "dag.json", "--budget", "85%", "--solver", "checkmate", "--time-limit", "20"]
    return CliRunner().invoke(main, [*command, *arguments])


@pytest.fixture(autouse=True)
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph whose fastest schedule in the file's order is slower than one in another."""
    monkeypatch.chdir(tmp_path)
    save_graph(layered(20), "dag.json")


def test_bounds_for_any_order_and_for_the_files() -> None:
    result = solve("-o", "s.json", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    general, fixed = found["bounds"]
    assert (general["order"], general["transfers"], fixed["order"]) == ("any", True, "file")
    assert general["seconds"] == found["lower_bound"] < fixed["seconds"] <= found["time"] * (1 + 1e-6)
    assert general["gap"] == pytest.approx(found["gap"])
    file = load_schedule("s.json", load_graph("dag.json"))
    assert file.predicted["lower_bound"] == general["seconds"]


def test_for_people() -> None:
    text = solve().stdout
    assert "(any order), gap" in text
    assert "(file's order), gap" in text


def test_no_time_for_bounds() -> None:
    found = json.loads(solve("--bound-time", "0", "--json").stdout)
    assert found["lower_bound"] == pytest.approx(time_bound(load_graph("dag.json")))


@pytest.mark.parametrize("seconds", ["-1", "inf", "nan"])
def test_a_bound_time_that_is_none(seconds: str) -> None:
    result = solve("--bound-time", seconds)
    assert result.exit_code == 2
    assert "is no time" in result.stderr
