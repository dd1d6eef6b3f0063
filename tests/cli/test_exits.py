"""Programs and commands that end while work is under way: with the exit code of their result, and soon.

A thread that comes back from compiled code after the interpreter's end aborts the process: exit code 134,
`terminate called without an active exception`, now and then 139. benchmarks/exits.py ends 200 commands.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.folders.scratch import sweep
from memplan.graphs.generators import layered
from memplan.instances import catalogue as instances
from memplan.planner.baseline import baseline
from memplan.planner.schedule.file import load_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry import run as registry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sends POSIX signals, looks into /proc")

PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]
MARK = "MEMPLAN_TEST_EXIT"
GRAPH = layered(60, width=4, seed=3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder. No process may be left when the test is over. Compiled code is where the user has
    it: compiling would take the processes minutes."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with suppress(InfeasibleError):
        registry.solve("search", Problem(GRAPH, baseline(GRAPH).peak * 3 // 4), 0.1, bound_seconds=0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setenv(MARK, str(tmp_path))
    yield tmp_path
    for pid in left(tmp_path):
        os.kill(pid, signal.SIGKILL)


def left(mark: Path) -> set[int]:
    found = set[int]()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}\0".encode() in environ.read_bytes():
                found.add(int(environ.parent.name))
    return found - {os.getpid()}


def assert_nothing_is_left(folder: Path, *, late: bool = False) -> None:
    """Neither processes nor temporary folders. late: the machine was busy, and a process that had no time to
    remove its own leaves them to the next."""
    end = time.monotonic() + 20
    while left(folder):
        assert time.monotonic() < end, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left(folder)]
        time.sleep(0.05)
    if late:
        sweep(folder / "scratch")
    assert not list((folder / "scratch").glob("memplan-*"))


@pytest.fixture
def busy() -> Iterator[None]:
    """Other work on the machine: the interpreter's end then takes long enough for a thread to come back."""
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count() or 1)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


# ── a solver whose compiled code does not look up ───────────────────────────────────────────────────

DEAF = """
import ctypes, threading, time
from dataclasses import dataclass
from pathlib import Path
from memplan.planner.baseline import baseline_schedule
from memplan.solvers.problem import SolverResult, Status

@dataclass(frozen=True)
class Settings:
    daemon: bool = True
    seconds: int = 600

def solve(problem, options):
    def work():
        Path("begun").touch()
        ctypes.CDLL(None).sleep(options.settings.seconds)  # without the GIL, as HiGHS and compiled code are
    threading.Thread(target=work, daemon=options.settings.daemon).start()
    while not Path("begun").exists():
        time.sleep(0.01)
    return SolverResult(baseline_schedule(problem.graph), Status.HEURISTIC)
"""


@pytest.mark.scripts
@pytest.mark.parametrize("daemon", ["true", "false"])
def test_a_command_does_not_wait_for_compiled_code(daemon: str, folder: Path) -> None:
    """For five seconds at most, and it leaves with the code that the result has."""
    (folder / "deaf_solver.py").write_text(DEAF)
    metadata = folder / "deaf-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: deaf\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[memplan.solvers]\ndeaf = deaf_solver\n")
    save_graph(layered(12, width=3), "g.json")
    words = ["solve", "g.json", "--budget", "100%", "--solver", "deaf", "--set", f"daemon={daemon}"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [*PLAN, *words, "-o", "s.json"], capture_output=True, text=True, timeout=120, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "schedule     s.json" in done.stdout
    load_schedule("s.json", load_graph("g.json"))
    assert_nothing_is_left(folder)


# ── bounds that HiGHS is at when a limit ends the search ────────────────────────────────────────────


@pytest.mark.scripts
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("limit", ["1", "2"])
def test_solve_ends_with_its_code_while_bounds_are_under_way(limit: str, folder: Path) -> None:
    save_graph(instances.entry("bert-6").graph(), "g.json")
    words = ["solve", "g.json", "--budget", "75%", "--gap", "1e-9", "--time-limit", limit, "-o", "s.json"]
    done = subprocess.run([*PLAN, *words, "--bound-time", "0"], capture_output=True, text=True, timeout=200)
    said = [line for line in done.stderr.splitlines() if not line.startswith("plan: took ")]  # it is busy
    assert (done.returncode, said) == (0, [])
    graph = load_graph("g.json")
    saved = load_schedule("s.json", graph)
    assert simulate(graph, saved.schedule, budget=saved.budget).figures.peak <= baseline(graph).peak * 0.75
    assert_nothing_is_left(folder, late=True)


@pytest.mark.scripts
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("signals", [1, 2])
def test_solve_ends_with_130_on_ctrl_c(signals: int, folder: Path) -> None:
    save_graph(instances.entry("bert-6").graph(), "g.json")
    words = ["solve", "g.json", "--budget", "75%", "--gap", "1e-9", "--log", "log.csv", "-o", "s.json"]
    process = subprocess.Popen([*PLAN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 100
    while not any((folder / "scratch").glob("memplan-highs-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _out, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith("plan: interrupted")
    assert_nothing_is_left(folder, late=True)


# ── a user's program ────────────────────────────────────────────────────────────────────────────────

PROGRAM = """
import sys, threading, time
from memplan.instances import catalogue as instances
from memplan.planner.baseline import baseline
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from memplan.solvers.background import Background

graph = instances.entry("bert-6").graph()
problem = Problem(graph, baseline(graph).peak * 3 // 4)
way, ending = sys.argv[1:]
if way == "background":
    improving = Background("auto", problem, 100.0, {"gap": "0"})
    time.sleep(4.0)
else:
    found = registry.solve("auto", problem, 2.0, {"gap": "1e-9"}, bound_seconds=0.0)
    assert found.figures.peak <= problem.budget
print("ends", flush=True)
if ending == "exit":
    sys.exit(3)
if ending == "raise":
    raise ValueError("the user's own")
if ending == "wait":
    time.sleep(600)
"""


@pytest.mark.scripts
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("way", "ending", "code"),
    [
        ("background", "", 0),
        ("background", "exit", 3),
        ("background", "raise", 1),
        ("background", "SIGINT", -signal.SIGINT),
        ("background", "SIGTERM", -signal.SIGTERM),
        ("solve", "exit", 3),
        ("solve", "raise", 1),
    ],
)
def test_a_program_ends_with_its_own_code(way: str, ending: str, code: int, folder: Path) -> None:
    """Though a schedule is sought in the background, or bounds were given up a moment ago."""
    (folder / "program.py").write_text(PROGRAM)
    how = "wait" if ending.startswith("SIG") else ending
    command = [sys.executable, "program.py", way, how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ends\n", process.communicate()
    if ending.startswith("SIG"):
        process.send_signal(getattr(signal, ending))
    _out, said = process.communicate(timeout=60)  # what is sought may take 100 s
    assert process.returncode == code
    assert ("ValueError: the user's own" in said) == (ending == "raise")
    assert "terminate called" not in said
    end = time.monotonic() + 20
    while left(folder):
        assert time.monotonic() < end
        time.sleep(0.05)
    if ending != "SIGTERM":  # which Python does not handle: the next process sweeps
        assert not list((folder / "scratch").glob("memplan-*"))
