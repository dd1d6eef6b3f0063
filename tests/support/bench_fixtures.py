"""Rows made by hand, and `plan bench` in a folder with graphs and a solver of another package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.comparison.trials import Contender, Outcome, Row, Trial, instance, row
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain, layered, unet
from memplan.planner.budget import parse_budget
from memplan.solvers.registry import run as registry

FAKES = """
import os, subprocess, sys, time
from dataclasses import dataclass
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.schedule import Schedule
from memplan.solvers.problem import SolverResult, Status

@dataclass(frozen=True)
class Settings:
    does: str = "works"
    note: str = ""
    cache: str = ""
    seed: int = 0

def solve(problem, options):
    schedule, does = baseline_schedule(problem.graph), options.settings.does
    if problem.graph.name == "chain-8-seed0":
        does = "warms up"
    elif options.settings.note:
        with open(options.settings.note, "a") as note:
            note.write("solved\\n")
    if does == "lies":
        schedule = Schedule(schedule.verbs[1:], schedule.targets[1:], schedule.wheres[1:])
    if does == "aborts":
        os.abort()
    if does == "raises":
        raise ZeroDivisionError("over nothing")
    if does == "exits":
        sys.exit(3)
    if does == "hangs":
        sleeper = "import time; time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", sleeper])
        print(child.pid, file=open(options.settings.note + ".pid", "w"))
        while True:
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                pass
    return SolverResult(schedule, Status.HEURISTIC, lower_bound=0.0)
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run `plan bench` in a folder with graphs/, and a solver `fake` of another package."""
    (tmp_path / "fake_solver.py").write_text(FAKES)
    metadata = tmp_path / "fakes-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fakes\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{registry.GROUP}]\nfake = fake_solver\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("graphs").mkdir()
    save_graph(chain(6), "graphs/chain.json")
    save_graph(unet(2), "graphs/unet.yaml.gz")
    Path("graphs/plan.json").write_text('{"format": "plan-schedule/1"}')
    Path("graphs/half.json").write_text('{"format": "plan-gr')
    Path("graphs/read.me").write_text("no graph")
    return lambda *words: CliRunner().invoke(main, ["bench", *(str(word) for word in words)])


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., Row]:
    """A row of a solver on a graph: its overhead in percent, or None."""
    save_graph(layered(5), tmp_path / "g.json")
    on = instance(tmp_path / "g.json")

    def make(
        solver: str,
        graph: str,
        percent: int,
        overhead: float | None,
        seconds: float = 1.0,
        settings: str = "{}",
        found: tuple[tuple[float, float], ...] = (),
    ) -> Row:
        one = replace(on, graph=graph, sha256=graph, baseline_time=100.0, baseline_peak=1000)
        trial = Trial(one, parse_budget(f"{percent}%"), Contender(solver, {}, settings), 60.0)
        if overhead is None:
            return row(trial, {"outcome": Outcome.INFEASIBLE, "seconds": seconds})
        ending: dict[str, Any] = {
            "time": 100.0 + overhead,
            "peak": 400,
            "lower_bound": 100.0,
            "history": found,
        }
        return row(trial, {"outcome": Outcome.OK, "seconds": seconds, **ending})

    return make
