"""Signals that end a command, and what a process leaves behind that is killed: nothing for long."""

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
from memplan.graphs.folders.scratch import Scratch, sweep
from memplan.graphs.generators import chain
from memplan.planner.schedule.file import load_schedule
from memplan.solvers.registry import run as registry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sends POSIX signals, looks into /proc")

MARK = "MEMPLAN_TEST_MARK"
PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]

SLOW = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from memplan.planner.baseline import baseline_schedule
from memplan.solvers.problem import SolverResult, Status

@dataclass(frozen=True)
class Settings:
    fault: bool = False
    thread: bool = False
    deaf: bool = False

class Deaf:
    def __del__(self):
        Path("begun").touch()
        time.sleep(600)

def solve(problem, options):
    if options.settings.thread:
        ThreadPoolExecutor(1).submit(time.sleep, 600)
    try:
        Deaf() if options.settings.deaf else Path("begun").touch()
        time.sleep(600)
    except KeyboardInterrupt:
        if options.settings.fault:
            raise ImportError("numpy is half imported")
    return SolverResult(baseline_schedule(problem.graph), Status.FEASIBLE, interrupted=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with a graph and a solver `slow` that only a signal ends. Nobody is left behind."""
    (tmp_path / "slow_solver.py").write_text(SLOW)
    metadata = tmp_path / "slow-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{registry.GROUP}]\nslow = slow_solver\n")
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(MARK, str(tmp_path))
    save_graph(chain(5), "g.json")
    yield tmp_path
    for pid in marked(tmp_path):
        os.kill(pid, signal.SIGKILL)


def marked(mark: Path) -> set[int]:
    """The processes that were started with this mark, and what these started."""
    found: set[int] = set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}\0".encode() in environ.read_bytes():
                found.add(int(environ.parent.name))
    return found - {os.getpid()}


def wait_until(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 100
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def assert_nobody_is_left(mark: Path) -> None:
    end = time.monotonic() + 20
    while marked(mark):
        assert time.monotonic() < end, [Path(f"/proc/{pid}/cmdline").read_text() for pid in marked(mark)]
        time.sleep(0.05)


def solving(*words: str) -> subprocess.Popen[str]:
    solve = ["solve", "g.json", "--budget", "100%", "--solver", "slow", "-o", "s.json", *words]
    return subprocess.Popen([*PLAN, *solve], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_keeps_the_best_so_far(number: str, code: int, folder: Path) -> None:
    process = solving()
    wait_until(folder / "begun", process)
    process.send_signal(getattr(signal, number))
    out, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, "plan: interrupted: this is the best schedule so far\n")
    assert "schedule     s.json" in out
    load_schedule("s.json", load_graph("g.json"))
    assert not list((folder / "scratch").iterdir())


def test_what_a_signal_breaks_is_no_fault_of_ours(folder: Path) -> None:
    process = solving("--set", "fault=true")
    wait_until(folder / "begun", process)
    process.send_signal(signal.SIGTERM)
    _out, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "plan: interrupted\n")
    assert not Path("s.json").exists()


@pytest.mark.scripts
def test_a_thread_in_the_middle_of_something_is_not_waited_for(folder: Path) -> None:
    process = solving("--set", "thread=true")
    wait_until(folder / "begun", process)
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "plan: interrupted: this is the best schedule so far\n")
    assert "schedule     s.json" in out


def test_a_signal_comes_again_where_nobody_can_pass_it_on(folder: Path) -> None:
    """In a destructor Python drops it; so it does in the steps of a compiler."""
    process = solving("--set", "deaf=true")
    wait_until(folder / "begun", process)
    process.send_signal(signal.SIGTERM)
    _out, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "plan: interrupted: this is the best schedule so far\n")


def test_a_signal_that_is_ignored_stays_ignored(folder: Path) -> None:
    """As under nohup."""
    words = " ".join(["solve", "g.json", "--budget", "100%", "--solver", "slow"])
    call = ["sh", "-c", f"trap '' HUP; exec '{sys.executable}' -c '{PLAN[-1]}' {words}"]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(folder / "begun", process)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


@pytest.mark.scripts
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_comparison_leaves_no_process_and_no_folder(number: str, folder: Path) -> None:
    words = ["bench", "g.json", "--solvers", "slow", "--budgets", "100%", "-o", "rows.csv"]
    process = subprocess.Popen([*PLAN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    scratch, end = folder / "scratch", time.monotonic() + 60
    while not list(scratch.glob("memplan-bench-*/begun")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(getattr(signal, number))
    process.communicate(timeout=60)
    assert process.returncode == {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}[number]
    assert_nobody_is_left(folder)
    sweep(scratch)
    assert not list(scratch.iterdir())


PARENT = """
import sys, time
from memplan.solvers.workers.worker import Worker
worker = Worker("milp")
worker.call("family:begin")
time.sleep(600)
"""
FAMILY = """
import subprocess, sys, time
from pathlib import Path
def begin(call):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path("begun").touch()
    time.sleep(600)
"""


def test_children_and_theirs_end_with_a_parent_that_is_killed(folder: Path) -> None:
    (folder / "family.py").write_text(FAMILY)
    process = subprocess.Popen([sys.executable, "-c", PARENT], text=True)
    end = time.monotonic() + 60
    while not list(folder.glob("scratch/memplan-milp-*/begun")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    assert len(marked(folder)) == 3
    process.kill()
    process.wait()
    assert_nobody_is_left(folder)
    sweep(folder / "scratch")
    assert list(folder.glob("scratch/*")) == []


WORKERS = """
import sys, time
from pathlib import Path
from memplan.solvers.recomputation.hiremate.subproblems import Job, solve_all
def slowly(content, seconds):
    Path(f"begun{content}").touch()
    time.sleep(600)
    return 0, True
solve_all(slowly, [Job(1, 1.0), Job(2, 1.0)], workers=2)
"""


@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT"])
def test_workers_end_with_their_parent(number: str, folder: Path) -> None:
    (folder / "workers.py").write_text(WORKERS)
    process = subprocess.Popen([sys.executable, "workers.py"], stderr=subprocess.DEVNULL, text=True)
    for content in (1, 2):
        wait_until(folder / f"begun{content}", process)
    process.send_signal(getattr(signal, number))
    process.wait(60)
    assert_nobody_is_left(folder)


def test_only_folders_of_the_dead_are_swept(tmp_path: Path) -> None:
    (tmp_path / "memplan-milp-other").mkdir()
    (tmp_path / "memplan-milp-file").write_text("")
    with Scratch("milp", tmp_path) as alive:
        code = (
            "import os, sys; from pathlib import Path; from memplan.graphs.folders.scratch import Scratch\n"
        )
        code += "one = Scratch('bench', Path(sys.argv[1])); Path(one.name, 'deep').mkdir(); os._exit(1)"
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
        assert len(list(tmp_path.iterdir())) == 4, "its own, the dead one's and two others"
        with Scratch("bench", tmp_path):
            names = {path.name for path in tmp_path.iterdir()}
            assert len(names) == 4
            assert Path(alive).name in names
    assert {path.name for path in tmp_path.iterdir()} == {"memplan-milp-other", "memplan-milp-file"}
