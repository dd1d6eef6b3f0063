"""A refusal ends with the command to copy; it succeeds, whatever the solver finds the second time."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from memplan.cli.next_command import command_within
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain


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
