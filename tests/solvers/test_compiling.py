"""What other processes compile: it is all there is, nobody waits longer than needed, no limit pays for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from memplan.graphs.generators import chain
from memplan.graphs.machine import Link, Links, Machine
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.plain import baseline
from memplan.solvers import compiling
from memplan.solvers.compiling import Code, compile_apart
from memplan.solvers.portfolio import moving
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve

LOOK = """
from memplan.solvers.compiling import compile_apart
from memplan.solvers.portfolio.moving import CODES
told, codes = [], [code for codes in CODES.values() for code in codes]
assert len(codes) == 4
assert not any(code.at_hand() for code in codes)
compile_apart(codes, told.append, lambda: False)
assert all(code.at_hand() for code in codes)
assert len(told) == 1, told
compile_apart(codes, told.append, lambda: False)
assert len(told) == 1, told

from memplan.solvers.registry.run import solve
from numba.core import event
from test_compiling import problem

with event.install_recorder("numba:compile") as recorder:
    for solver in CODES:
        solve(solver, problem(), 1.0, bound_seconds=0.0)
functions = [each.data["dispatcher"].py_func for _time, each in recorder.buffer]
ours = {function.__name__ for function in functions if function.__module__.startswith("memplan")}
assert not ours - {"_play"}, ours  # that of the simulator's figures is everybody's
"""

MISSING = Code(lambda: False, "memplan.solvers.recomputation.search.compiling")


def problem() -> Problem:
    """One that is not solved at once, by any solver."""
    link = Link(1e8)
    graph = with_updates(chain(12), optimizer=ADAMW, when="in-backward", device_rate=1e9, host_rate=1e9)
    return Problem(graph, baseline(graph).peak * 4 // 5, Machine(links=Links(d2h=link, h2d=link)))


@pytest.mark.timeout(600)
def test_what_other_processes_compile_is_all_that_solvers_need(tmp_path: Path) -> None:
    """With nothing kept before; then there is nothing left to do."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": paths}
    environment.pop("NUMBA_CACHE_DIR", None)
    asked = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr


def test_who_has_enough_does_not_wait() -> None:
    begin = monotonic()
    compile_apart([MISSING], lambda _line: None, lambda: True)
    assert monotonic() - begin < 5.0


def test_without_a_place_to_keep_it_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "cache_folder", lambda: None)
    monkeypatch.setattr(compiling.child, "start", lambda *_: pytest.fail("started"))
    compile_apart([MISSING], lambda line: pytest.fail(line), lambda: False)


def test_a_process_for_each_core_takes_as_much_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[tuple[str, ...]]()

    def start(_module: str, _folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
        started.append(arguments)
        return subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)

    monkeypatch.setattr(compiling, "cpu_count", lambda: 2)
    monkeypatch.setattr(compiling.child, "start", start)
    codes = [Code(lambda: False, "m", str(seconds), seconds) for seconds in (3.0, 8.0, 6.0)]
    compile_apart(codes, lambda _line: None, lambda: False)
    assert started == [("m", "8.0"), ("m", "6.0", "m", "3.0")]


def test_a_time_limit_does_not_pay_for_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tensors move; before the clock runs."""
    limit, seconds, asked = 1.0, 2.0, list[int]()

    def compiled(codes: tuple[Code, ...], *_: object) -> None:
        asked.append(len(codes))
        if len(asked) == 1:
            sleep(seconds)

    monkeypatch.setattr(moving, "compile_apart", compiled)
    begin = monotonic()
    solve("auto", problem(), limit, {"gap": "0"}, bound_seconds=0.0)
    assert asked[0] == 3
    assert monotonic() - begin > seconds + limit / 2
