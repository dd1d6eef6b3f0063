"""What other processes compile: it is all there is, nobody waits longer than needed, no limit pays for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from memplan.graphs.folders.private import PrivateFolder
from memplan.graphs.generators import chain
from memplan.graphs.machine import Link, Links, Machine, Peers
from memplan.graphs.transformations.sharding import sharded
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.baseline import baseline
from memplan.solvers.auto import with_transfers
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.solvers.workers import precompile as compiling
from memplan.solvers.workers.precompile import Code, precompile

LOOK = """
from memplan.solvers.workers.precompile import precompile
from memplan.solvers.auto.with_transfers import CODES
told, codes = [], [code for codes in CODES.values() for code in codes]
assert len(codes) == 5
assert not any(code.available() for code in codes)
precompile(codes, told.append, lambda: False)
assert all(code.available() for code in codes)
assert len(told) == 1, told
precompile(codes, told.append, lambda: False)
assert len(told) == 1, told

from memplan.solvers.registry.run import solve
from numba.core import event
from test_precompile import problem

with event.install_recorder("numba:compile") as recorder:
    for solver in CODES:
        solve(solver, problem(solver), 1.0, bound_seconds=0.0)
functions = [each.data["dispatcher"].py_func for _time, each in recorder.buffer]
ours = {function.__name__ for function in functions if function.__module__.startswith("memplan")}
assert not ours - {"_play"}, ours  # that of the simulator's figures is everybody's
"""

NOTING = """
import os
def note(seconds):
    with open(f"{folder}/{{os.getpid()}}.ran", "a") as file:
        file.write(f"{{seconds}} ")
def f3(): note(3)
def f6(): note(6)
def f8(): note(8)
"""

MISSING = Code(lambda: False, "memplan.solvers.recomputation.search.compiling:compile_search")


def problem(solver: str) -> Problem:
    """A problem that the solver accepts, and does not solve at once."""
    link = Link(1e8)
    graph = with_updates(chain(12), optimizer=ADAMW, when="in-backward", device_rate=1e9, host_rate=1e9)
    if solver == "sharded-search":
        graph = sharded(graph, Peers(1e8, 0.0, ranks=2))
        return Problem(graph, baseline(graph).peak * 4 // 5)
    return Problem(graph, baseline(graph).peak * 4 // 5, Machine(links=Links(d2h=link, h2d=link)))


@pytest.mark.scripts
@pytest.mark.timeout(600)
def test_what_other_processes_compile_is_all_that_solvers_need(tmp_path: Path) -> None:
    """With nothing kept before; then there is nothing left to do."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": paths}
    environment.pop("NUMBA_CACHE_DIR", None)
    asked = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr


def test_who_has_enough_does_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker would sleep beyond the test's own limit."""
    (tmp_path / "endless.py").write_text("import time\ndef wait(): time.sleep(1000)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    precompile([Code(lambda: False, "endless:wait")], lambda _line: None, lambda: True)


def test_without_a_place_to_keep_it_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "code_folder", lambda: PrivateFolder(None))
    monkeypatch.setattr(compiling, "Worker", lambda *_, **_named: pytest.fail("started"))
    precompile([MISSING], lambda line: pytest.fail(line), lambda: False)


def test_functions_are_shared_out_among_the_cores_the_longest_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "noting.py").write_text(NOTING.format(folder=str(tmp_path)))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(compiling, "cpu_count", lambda: 2)
    codes = [Code(lambda: False, f"noting:f{seconds}", float(seconds)) for seconds in (3, 8, 6)]
    precompile(codes, lambda _line: None, lambda: False)
    ran = sorted(path.read_text().split() for path in tmp_path.glob("*.ran"))
    assert ran == [["6", "3"], ["8"]]


def test_a_time_limit_does_not_pay_for_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tensors move; before the clock runs."""
    limit, seconds, asked = 1.0, 2.0, list[int]()

    def compiled(codes: tuple[Code, ...], *_: object) -> None:
        asked.append(len(codes))
        if len(asked) == 1:
            sleep(seconds)

    monkeypatch.setattr(with_transfers, "precompile", compiled)
    begin = monotonic()
    solve("auto", problem("auto"), limit, {"gap": "0"}, bound_seconds=0.0)
    assert asked[0] == 3
    assert monotonic() - begin > seconds + limit / 2
