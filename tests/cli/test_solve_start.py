"""`plan solve --start`: a schedule file as the start of a search."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain

Plan = Callable[..., Result]
SOLVE = ("solve", "chain.json", "--bound-time", "0", "--budget")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` in a folder with a chain and its best schedule at 60 % of the memory, s.json."""
    monkeypatch.chdir(tmp_path)
    save_graph(chain(12), "chain.json")
    run = lambda *words: CliRunner().invoke(main, [*words])  # noqa: E731
    assert run(*SOLVE, "60%", "--solver", "rotor", "-o", "s.json").exit_code == 0
    return run


def test_the_answer_is_no_slower_and_can_replace_its_start(plan: Plan) -> None:
    before = json.loads(Path("s.json").read_text())["predicted"]["time"]
    for budget, solver in (("60%", "store-all"), ("70%", "chen-sqrt"), ("80%", "search")):
        call = (*SOLVE, budget, "--solver", solver, "--time-limit", "2s", "--start", "s.json")
        result = plan(*call, "-o", "s.json", "--log", "log.csv", "--json")
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        assert found["time"] <= before
        before = found["time"]
        assert ",start" in Path("log.csv").read_text().splitlines()[1]
        assert plan("check", "s.json").exit_code == 0


def test_a_solver_without_an_answer_has_the_start(plan: Plan) -> None:
    result = plan(*SOLVE, "60%", "--solver", "store-all", "--start", "s.json")
    assert result.exit_code == 0
    assert "store-all: the best found so far" in result.stdout
    assert "nothing faster than the start was found: the answer is the start" in result.stderr


def test_what_is_no_start_is_refused_in_one_line(plan: Plan) -> None:
    save_graph(chain(8), "other.json")
    Path("half.json").write_text("{")
    for words, code, line in (
        ((*SOLVE, "50%"), 2, "of the device, the budget is"),
        (("solve", "other.json", "--budget", "100%"), 6, "s.json was made for another graph than other.json"),
        ((*SOLVE, "60%", "--start", "chain.json"), 2, "it is a graph"),
        ((*SOLVE, "60%", "--start", "half.json"), 2, "half.json: line 1: not JSON"),
        ((*SOLVE, "60%", "--start", "none.json"), 2, "none.json: no such file"),
    ):
        result = plan(*words, *(() if "--start" in words else ("--start", "s.json")), "-o", "n.json")
        assert result.exit_code == code, result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert line in result.stderr
        assert not Path("n.json").exists()
