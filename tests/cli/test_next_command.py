"""A refusal ends with the command to copy; it succeeds, whatever the solver finds the second time."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.cli.next_command import command_within
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph


@pytest.mark.parametrize(
    ("typed", "then"),
    [
        ("/usr/bin/plan solve g.json --budget 60% --gap 0", "plan solve g.json --budget 84% --gap 0"),
        ("plan optimize 'my model.py' --budget=60%", "plan optimize 'my model.py' --budget 84%"),
        ("memplan solve g.json", "plan solve g.json --budget 84%"),
        ("pytest -q", None),
    ],
)
def test_the_command_is_as_typed_with_another_budget(typed: str, then: str | None) -> None:
    assert command_within("84%", shlex.split(typed)) == then


def next_of(graph: Graph, budget: str) -> dict[str, str]:
    """Return what `plan show` says to do next, after a solve within a budget."""
    save_graph(graph, Path("g.json"))
    words = ["g.json", "--budget", budget, "--solver", "rotor", "-o", "s.json"]
    assert CliRunner().invoke(main, ["solve", *words]).exit_code == 0
    shown = CliRunner().invoke(main, ["show", "s.json"])
    assert shown.exit_code == 0, shown.stderr
    rows = re.findall(r"^(compare|train|more memory|less memory) +(plan .*)$", shown.stdout, re.M)
    return dict(rows)


def test_a_schedule_names_the_next_budget_and_the_command_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = next_of(chain(8, seed=1), "72%")
    assert found == {"more memory": "plan solve g.json --budget 80% -o g-80.schedule.json"}
    assert CliRunner().invoke(main, shlex.split(found["more memory"])[1:]).exit_code == 0
    assert Path("g-80.schedule.json").exists()
    found = next_of(chain(8, seed=1), "100%")
    assert found == {"less memory": "plan solve g.json --budget 90% -o g-90.schedule.json"}
    assert "more memory" not in next_of(chain(1), "100%")
    for seed in range(4):  # a share of an odd peak is not a whole number of bytes
        found = next_of(chain(8, seed=seed), "80%")
        budgets = [shlex.split(line)[4] for line in found.values()]
        assert set(budgets) <= {"70%", "90%"}
        assert budgets


def test_a_schedule_of_a_model_is_run_and_trained_and_one_of_an_estimate_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph, source = chain(4), {"model": "my model.py", "entry": "small", "optimizer": {"name": "adamw"}}
    found = next_of(replace(graph, source=source), "100%")
    assert found["compare"] == "plan run s.json --model 'my model.py:small'"
    train = "plan train s.json --model 'my model.py:small' --steps 1000 --checkpoint FOLDER"
    assert found["train"] == train
    assert "train" not in next_of(replace(graph, source={"model": "m.py", "entry": "build"}), "100%")
    assert "compare" not in next_of(replace(graph, source={**source, "estimate": {}}), "100%")


@pytest.mark.scripts
def test_a_refusal_ends_with_a_command_that_succeeds(tmp_path: Path) -> None:
    save_graph(chain(6, parameters=True), tmp_path / "chain.json")
    plan = Path(sys.executable).with_name("plan")

    def run(command: str) -> subprocess.CompletedProcess[str]:
        words = [str(plan), *shlex.split(command)[1:]]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    refused = run("plan solve chain.json --solver rotor --budget 20% --bound-time 0")
    assert refused.returncode == 3
    line = refused.stderr.strip().splitlines()[-1]
    assert "% of the baseline's peak (" in line.partition(": no schedule within")[2].split(";")[0]
    command = line.partition("; try: ")[2]
    assert command.startswith("plan solve chain.json --solver rotor --budget ")
    assert run(command).returncode == 0
