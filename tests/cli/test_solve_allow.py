"""`plan solve --allow`: what the schedule has, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import memplan
import numpy as np
import pytest
from click.testing import CliRunner, Result
from command_line import write_files
from memplan.cli.main import main
from memplan.planner.schedule.schedule import Verb

Plan = Callable[..., Result]

SOLVE = ("solve", "chain.json", "--budget", "60%", "--solver", "chen-sqrt", "--bound-time", "0")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    write_files()
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_schedule_has_what_is_allowed(plan: Plan) -> None:
    found = plan(*SOLVE, "--allow", "recompute", "-o", "s.json")
    assert found.exit_code == 0, found.stderr
    assert "allowed" in found.stdout
    assert "allowed" not in plan(*SOLVE).stdout
    for words, names in ((("--allow", "recompute"), ["recompute"]), ((), None)):
        assert json.loads(plan(*SOLVE, *words, "--json").stdout)["allow"] == names
    schedule = memplan.load_schedule("s.json", memplan.load_graph("chain.json")).schedule
    assert (schedule.verbs < Verb.OFFLOAD).all()
    runs = schedule.targets[schedule.verbs == Verb.COMPUTE]
    assert len(np.unique(runs)) < len(runs)
    assert plan("check", "s.json", "--graph", "chain.json").exit_code == 0


def test_a_budget_that_needs_more_says_what(plan: Plan) -> None:
    result = plan(
        "solve", "chain.json", "--budget", "60%", "--solver", "store-all", "--allow", "offload", "--json"
    )
    assert result.exit_code == 3
    message = json.loads(result.stdout)["error"]
    assert message.startswith("with offload allowed: no schedule within")
    assert message.endswith("there may be one with allow='recompute,offload'")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("recomput", "did you mean 'recompute'?"),
        ("disk", "'disk' without 'offload'"),
    ],
)
def test_other_words_are_refused(plan: Plan, words: str, line: str) -> None:
    result = plan(*SOLVE, "--allow", words)
    assert result.exit_code == 2
    assert line in result.stderr
    assert "--allow" in result.stderr
