"""Kill `plan` at a random moment, and look at what is left: test_signals_kills.py, benchmarks/kills.py.

After any signal: the exit code is the signal's or the command's own, nobody says Traceback, no process is
left after some seconds, every file that was written is whole. After SIGINT and SIGTERM no temporary file is
left either, after SIGKILL none that the next start does not sweep.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from memplan.cli.exits import Exit
from memplan.comparison.file import prepare, read_rows
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import read_document
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.folders.scratch import sweep
from memplan.graphs.generators import chain, layered
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.file import load_schedule, save_schedule

MARK = "MEMPLAN_KILLS"
PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
OWN = {int(code) for code in Exit} - {Exit.FAULT, Exit.INTERRUPTED}
"""Exit codes of a command that was over before the signal, or has had no time on a busy machine."""

PATIENCE_SECONDS = 60.0
"""How long a command may take to end once it is asked to, and what it started once it has ended."""

MODEL = """
import torch
def build(batch=4):
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(3)]
    return torch.nn.Sequential(*layers), (torch.ones(batch, 64),), lambda y: y.sum()
"""


@dataclass(frozen=True)
class Command:
    """words: of the command line. writes: the file that -o names. graph: whose schedule it writes, if one."""

    words: tuple[str, ...]
    writes: str = ""
    graph: str = ""


def _solve(solver: str, graph: str, *more: str, budget: str = "60%") -> Command:
    words = ("solve", graph, "--budget", budget, "--solver", solver, "--time-limit", "6", "-o", "out.json")
    return Command((*words, *more), "out.json", graph)


LIGHT = {
    "check": Command(("check", "s.json", "--graph", "long.json")),
    "show": Command(("show", "s.json", "--graph", "long.json")),
    "machine-list": Command(("machine", "rtx3060", "-o", "out.yaml"), "out.yaml"),
    "checkmate": _solve("checkmate", "g.json"),
    "cbc": _solve("checkmate", "g.json", "--set", "backend=PULP_CBC_CMD"),
    "bench": Command(
        (
            *("bench", "g.json", "--solvers", "checkmate,rotor", "--budgets", "60%,50%", "--workers", "2"),
            *("--time-limit", "3", "--bound-time", "1", "-o", "out.csv"),
        ),
        "out.csv",
    ),
}
"""Without torch, and nothing that compiles for long."""

ALL = {
    **LIGHT,
    "auto": _solve("auto", "g.json"),
    "auto-moving": _solve("auto", "g.json", "--machine", "rtx3060", "--set", "workers=2"),
    "auto-processes": _solve("auto", "long.json", "--machine", "rtx3060", "--set", "workers=2"),
    "search": _solve("search", "long.json"),
    "h-ilp": _solve("h-ilp", "g.json", "--set", "workers=2", "--set", "cache=off", budget="70%"),
    "moccasin": _solve("moccasin", "g.json"),
    "partition": Command(("partition", "long.json")),
    "profile": Command(("profile", "m.py", "-o", "out.yaml"), "out.yaml"),
    "run": Command(("run", "m-s.json", "--graph", "m.json", "--model", "m.py", "--timing-repeats", "3")),
    "size": Command(("size", "m.py", "--gpu", "rtx3060", "--solver", "rotor", "--time-limit", "2")),
    "machine": Command(("machine", "--device", "cpu", "--disk", ".", "-o", "out.yaml"), "out.yaml"),
}


@dataclass(frozen=True)
class Killed:
    """What came of one: the exit code, and what is wrong, one line each. over: it was, before."""

    code: int
    faults: tuple[str, ...]
    over: bool


class Range:
    """A folder to kill in. Use as a context: nobody that was started there is left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scratch = folder, folder / "scratch"
        self.scratch.mkdir(parents=True)
        self.environment = {**os.environ, "TMPDIR": str(self.scratch), MARK: str(folder)}
        save_graph(chain(24), folder / "g.json")
        save_graph(layered(250), folder / "long.json")
        graph = load_graph(folder / "long.json")
        save_schedule(folder / "s.json", graph, baseline_schedule(graph))
        (folder / "m.py").write_text(MODEL)

    def __enter__(self) -> Range:
        return self

    def __exit__(self, *_error: object) -> None:
        for pid in self.started():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, words: tuple[str, ...]) -> subprocess.Popen[str]:
        said = (self.folder / "said").open("w")
        with said:
            return subprocess.Popen(
                [*PLAN, *words],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=said,
                text=True,
            )

    def seconds(self, command: Command) -> float:
        """How long it takes when nobody kills it."""
        begun = time.monotonic()
        self.start(command.words).wait()
        return time.monotonic() - begun

    def kill(self, command: Command, number: str, seconds: float) -> Killed:
        """Start it, send it that signal after so long."""
        with suppress(FileNotFoundError):
            (self.folder / command.writes).unlink() if command.writes else None
        process = self.start(command.words)
        time.sleep(seconds)
        over = process.poll() is not None
        if not over:
            process.send_signal(getattr(signal, number))
        try:
            code = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return Killed(process.wait(), (f"{number} does not end it in {PATIENCE_SECONDS:g} s",), False)
        faults = [*self._wrong_code(code, number), *self._wrong_files(command)]
        if left := self._left_over():
            faults.append(f"left running: {left}")
        sweep(self.scratch)
        faults += [f"left in the temporary folder: {path.name}" for path in self._scraps()]
        for path in self.folder.glob(".memplan-*"):
            faults += [f"left beside: {path.name}"] if number != "SIGKILL" else []
            path.unlink()
        return Killed(code, tuple(faults), over)

    def _scraps(self) -> list[Path]:
        """torch keeps a cache of its own there, also when nobody kills it."""
        return [path for path in self.scratch.iterdir() if not path.name.startswith("torchinductor_")]

    def _wrong_code(self, code: int, number: str) -> list[str]:
        """Before our first line runs Python has its own ways: by the signal, SIGINT with a traceback."""
        signum = getattr(signal, number)
        said = (self.folder / "said").read_text(errors="replace")
        early = code == -signum or "<frozen site>" in said
        known = early or code == 128 + signum or code in OWN
        faults = [] if known else [f"exit code {code}: {said[-300:]}"]
        if "Traceback" in said and not (early and number == "SIGINT"):
            faults.append(f"exit code {code}, a traceback: {said[-1500:]}")
        return faults

    def _wrong_files(self, command: Command) -> list[str]:
        path = self.folder / command.writes
        if not command.writes or not path.exists():
            return []
        try:
            if path.suffix == ".csv":
                prepare(path)
                read_rows(path)
            elif command.graph:
                load_schedule(path, load_graph(self.folder / command.graph))
            else:
                read_document(path)
        except InputError as error:
            return [f"not whole: {error}"]
        return []

    def _left_over(self) -> list[str]:
        end = time.monotonic() + PATIENCE_SECONDS / 2
        while self.started() and time.monotonic() < end:
            time.sleep(0.05)
        lines: list[str] = []
        for pid in self.started():
            with suppress(OSError):
                lines.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200])
        return lines

    def started(self) -> set[int]:
        """The processes that were started here, and those that these started."""
        found: set[int] = set()
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"{MARK}={self.folder}\0".encode() in environ.read_bytes():
                    found.add(int(environ.parent.name))
        return found


def moment(chance: Random, seconds: float) -> float:
    """When to kill a command that takes so long: at any time, the end a little more often."""
    return chance.uniform(0.0, seconds) if chance.random() < 0.8 else chance.uniform(0.9, 1.02) * seconds
