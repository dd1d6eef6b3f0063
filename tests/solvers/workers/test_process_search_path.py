"""Worker processes find modules where the program does; files with names of Python's modules break none."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.solvers.workers.process import search_path

NAMES = ("enum", "types", "random", "queue", "select", "pstats")
"""Modules of Python's own; workers load all of them, some of them earlier than others."""

PLAN = "import sys; from memplan.cli.main import main; sys.argv[0] = 'plan'; main()"

SCRIPT = """
import {names}
import sys
sys.path.insert(0, {folder!r})  # Python does so for a script's folder when it has loaded a few of its modules
import memplan, torch
from torch import nn
module = nn.Sequential(nn.Linear(16, 16), *[nn.Tanh() for _ in range(6)], nn.Linear(16, 4))
step = memplan.optimize(
    module, torch.randn(640, 16), loss_fn=lambda output: output.square().mean(), budget="85%",
    solver="checkmate", time_limit=2, cache=False,
)
print(step.plan.schedule is not None)
"""

LOKY = """
import sys
from joblib import Parallel, delayed
from memplan.solvers.workers.cluster import connected
with connected("loky"):
    print(set(Parallel(n_jobs=2)(delayed(abs)(number) for number in (-1, 1))))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a graph, and files named as Python's modules that can't be imported."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the {name} of somebody else')")
    save_graph(chain(8), tmp_path / "chain.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(code: str, *arguments: str) -> str:
    """Standard output of a script that stands elsewhere, as the command `plan` does."""
    script = Path.cwd() / "bin" / "script.py"
    script.parent.mkdir()
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, *arguments], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.scripts
@pytest.mark.parametrize("solver", ["checkmate", "auto"])
def test_plan_solve(folder: Path, solver: str) -> None:
    run(
        PLAN,
        *("solve", "chain.json", "--budget", "60%", "--solver", solver, "--time-limit", "2", "-o", "s.json"),
    )
    assert (folder / "s.json").stat().st_size > 0


@pytest.mark.scripts
def test_plan_bench(folder: Path) -> None:
    words = ("bench", "chain.json", "--budgets", "60%", "--solvers", "checkmate,revolve", "--time-limit", "2")
    run(PLAN, *words, "-o", "rows.csv")
    with (folder / "rows.csv").open() as file:
        assert [row["outcome"] for row in csv.DictReader(file)] == ["ok", "ok"]


@pytest.mark.scripts
def test_a_script_in_the_folder(folder: Path) -> None:
    """It has Python's modules where it loads them before its own folder counts; so do its workers."""
    assert run(SCRIPT.format(names=", ".join(NAMES), folder=str(folder))) == "True\n"


def test_processes_of_joblib(folder: Path) -> None:
    del folder
    assert run(LOKY) == "{1}\n"
    assert "PYTHONSAFEPATH" not in os.environ


def test_the_path_is_this_process_s_with_python_s_own_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Relative folders are those of this process: a worker has another current folder."""
    standard = os.path.dirname(os.__file__)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "here", "/somewhere", standard, "/else"])
    assert search_path() == [standard, str(tmp_path / "here"), "/somewhere", "/else"]
