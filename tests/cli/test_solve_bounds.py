"""The bounds that `plan solve` prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.draft import Draft
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import layered
from memplan.graphs.graph import Kind, Phase
from memplan.planner.bounds import time_bound
from memplan.planner.schedule.file import load_schedule


def solve(*arguments: str) -> Result:
    command = ["solve", "dag.json", "--budget", "85%", "--solver", "checkmate", "--time-limit", "20"]
    return CliRunner().invoke(main, [*command, *arguments])


@pytest.fixture(autouse=True)
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph whose fastest schedule in the traced order is slower than one in another."""
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
    assert "(traced order, by HiGHS, not checked), gap" in text


def test_no_time_for_bounds() -> None:
    found = json.loads(solve("--bound-time", "0", "--json").stdout)
    assert found["lower_bound"] == pytest.approx(time_bound(load_graph("dag.json")))


@pytest.mark.parametrize("seconds", ["-1", "inf", "nan"])
def test_a_bound_time_that_is_none(seconds: str) -> None:
    result = solve("--bound-time", seconds)
    assert result.exit_code == 2
    assert "the time must be 0 seconds or more and finite, not " in result.stderr


def test_the_minimum_memory_with_backward_once() -> None:
    """Two gradients and a third in a large workspace: less memory than that makes the first two again."""
    draft = Draft("once")
    x, loss = draft.tensor("x", 1, Kind.INPUT), draft.tensor("l", 1)
    made = [draft.tensor(name, size) for name, size in (("g", 10), ("h", 100), ("r", 1))]
    draft.operation("F", time=1, reads=[x], writes=[loss], phase=Phase.LOSS)
    for gradient, workspace in zip(made, (0, 0, 1000), strict=True):
        name = f"B{gradient}"
        draft.operation(name, time=1, reads=[x], writes=[gradient], workspace=workspace, phase=Phase.BACKWARD)
    draft.operation("U", time=1, reads=made, phase=Phase.UPDATE)
    save_graph(draft.graph([]), "once.json")
    command = ["solve", "once.json", "--budget", "1100B", "--no-static-layout"]

    refused = CliRunner().invoke(main, [*command, "--solver", "store-all", "--json"])
    assert refused.exit_code == 3
    document = json.loads(refused.stdout)
    assert (document["min_memory"], document["min_memory_once"]) == (1002, 1112)
    assert "1,112 B" in document["error"]
    name = "minimum memory, backward once"
    proof = {"order": "file", "transfers": True, "backward_again": False, "form": "", "name": name}
    assert document["bounds"] == [{**proof, "by": "", "seconds": None, "gap": None}]
    assert "unless a backward operation runs twice" in refused.stderr

    found = CliRunner().invoke(main, [*command, "--solver", "checkmate", "-o", "s.json"])
    assert found.exit_code == 0, found.stderr
    shown = CliRunner().invoke(main, ["show", "s.json", "--graph", "once.json"])
    for text in (found.stdout, shown.stdout):
        assert re.search(r"1,002 B \(without offloading, any order\)", text)
        assert re.search(r"1,112 B .*\(without offloading, traced order, backward once\)", text)
    document = json.loads(
        CliRunner().invoke(main, ["show", "s.json", "--graph", "once.json", "--json"]).stdout
    )
    assert document["min_memory"] <= document["peak"] < document["min_memory_once"] == 1112
