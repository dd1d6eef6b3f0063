"""`plan solve` with a MILP backend that crashes, hangs or lies: a fake `cbc`, PuLP's COIN_CMD."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pulp
import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import layered
from memplan.solvers.milp import solve as milp

Solve = Callable[..., Result]

FAKE = """#!/bin/sh
"exec" "{python}" "$0" "$@"
import os, sys, time
solution = sys.argv[sys.argv.index("-solution") + 1]
def claim(status, value):
    with open(solution, "w") as file:
        file.write(f"{{status}} - objective value 0\\n")
        file.writelines(f"{{i}} X{{i:07d}} {{value}} 0\\n" for i in range(5000))
{body}
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fake is a script")


@pytest.fixture
def solve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Solve:
    """Solve a graph of 12 operations with a `cbc` that does as the Python code says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    save_graph(layered(12, width=4), "dag.json")

    def run(body: str, *more: str, budget: str = "85%") -> Result:
        Path("cbc").write_text(FAKE.format(python=sys.executable, body=body))
        Path("cbc").chmod(0o755)
        words = ["solve", "dag.json", "--budget", budget, "--solver", "checkmate", "-o", "s.json"]
        return CliRunner().invoke(main, [*words, "--set", "backend=COIN_CMD", *more])

    return run


HONEST = f"os.execv({pulp.PULP_CBC_CMD().path!r}, sys.argv)"


def test_an_honest_backend_of_that_name_is_believed(solve: Solve) -> None:
    result = solve(HONEST)
    assert result.exit_code == 0, result.stderr
    assert "optimal for its formulation" in result.stdout
    assert Path("s.json").exists()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("body", "line"),
    [
        ('claim("Optimal", 0.5)', "COIN_CMD gave a fractional answer: an integer is off by 0.5"),
        ('claim("Optimal", 0)', "COIN_CMD gave a wrong answer: a constraint is violated by 1"),
        ('claim("Optimal", 1)', "COIN_CMD gave a wrong answer: a constraint is violated by"),
        ('claim("Optimal", 7)', "COIN_CMD gave a wrong answer: a variable is outside its bounds by 6"),
        ('claim("Stopped on time", 0)', "COIN_CMD gave a wrong answer"),
        ('claim("Optimal", "nan")', "COIN_CMD gave no value for some of"),
        ('claim("Infeasible", 0)', "COIN_CMD is wrong: it says that there is no schedule, and one takes"),
        ('claim("Optimal", "much")', "COIN_CMD crashed: ValueError: could not convert"),
        ("pass", "COIN_CMD failed: Pulp: Error while executing"),
        ("os.abort()", "COIN_CMD failed: Pulp: Error while trying to execute"),
        ("os.kill(os.getppid(), 9)", "COIN_CMD crashed: exit status -9"),
    ],
)
def test_a_backend_that_breaks_or_lies_is_named(solve: Solve, body: str, line: str) -> None:
    result = solve(body)
    assert result.exit_code == 4
    assert result.stderr.startswith(f"plan: error: {line}")
    assert len(result.stderr.splitlines()) == 1
    assert not Path("s.json").exists()


@pytest.mark.scripts
def test_a_backend_that_hangs_is_ended(solve: Solve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milp, "GRACE_SECONDS", 2.0)
    result = solve("open('pid', 'w').write(str(os.getpid())); time.sleep(600)", "--time-limit", "1")
    assert result.exit_code == 4
    assert "COIN_CMD does not stop: its limit of" in result.stderr
    assert not Path("s.json").exists()


def test_a_claim_that_nothing_fits_is_held_against_the_plain_schedule(solve: Solve) -> None:
    """Below the floor only the least budget is asked for."""
    result = solve('claim("Infeasible", 0)', budget="1%")
    assert result.exit_code == 4
    assert "COIN_CMD is wrong: it says that there is no schedule, and one takes" in result.stderr
    result = solve(HONEST, budget="1%")
    assert result.exit_code == 3
    assert "below the minimum memory" in result.stderr
