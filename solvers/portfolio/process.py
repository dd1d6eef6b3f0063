"""Processes that solve one problem with any solver, line after line, for portfolios on large graphs.

    Processes.solve ──"solver seconds"──▶ `python -m memplan.solvers.portfolio.child` ──answer.npz──▶

Threads would wait for each other's Python there. A process takes a second or two to start, so each is used
again; one that dies costs the line that it was at. Ctrl-C reaches us alone and is passed on, so that the
solver in the process ends with its best so far. A process ends when we do: its input is then closed.
Only numbers and JSON travel, no pickle.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import mkdtemp
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Any

import numpy as np

from ...graphs.files.files import save_graph
from ...graphs.folders.scratch import Scratch
from ...planner.schedule.schedule import Initial, Schedule
from .. import child
from ..problem import Answer, InfeasibleError, NotAcceptedError, NotFoundError, Problem, Status
from .lines import Cancelled

_LOOK_SECONDS = 0.1

GRACE_SECONDS = 300.0
"""How long after its time limit, and as much again, a line may be at work before it counts as hung: what is
compiled at its first use takes a minute on a busy machine."""

LAST_SECONDS = 5.0
"""How long after Ctrl-C a line may take to give its best so far."""


class ProcessFaultError(Exception):
    """What a line raised in its process, or how that ended."""


class Processes:
    """Those of one problem, as many as lines are under way at once."""

    def __init__(self, problem: Problem) -> None:
        self.folder = Scratch("lines")
        self.idle: SimpleQueue[_Process] = SimpleQueue()
        self.all: list[_Process] = []
        machine = problem.machine or problem.graph.machine
        save_graph(replace(problem.graph, machine=machine), self.path / "graph.json")
        (self.path / "budget").write_text(str(problem.budget))

    @property
    def path(self) -> Path:
        return Path(self.folder.name)

    def solve(self, solver: str, seconds: float, cancelled: Cancelled) -> Answer:
        """What the solver of this name finds; its refusals as its own. Raises ProcessFaultError."""
        try:
            process = self.idle.get_nowait()
        except Empty:
            process = _Process(Path(mkdtemp(dir=self.path)), self.path)
            self.all.append(process)
        answer = process.ask(solver, seconds, cancelled)
        self.idle.put(process)  # one that failed is not used again
        return _read(answer)

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.all:
            process.end()
        self.folder.cleanup()


class _Process:
    def __init__(self, folder: Path, problem: Path) -> None:
        self.folder = folder
        with (folder / "complaint").open("wb") as complaint:
            self.child = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "memplan.solvers.portfolio.child", str(problem)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaint,
                start_new_session=True,
            )
        self.told: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.child.stdout or ():
            self.told.put(line)
        self.told.put(b"")

    def ask(self, solver: str, seconds: float, cancelled: Cancelled) -> Path:
        """The file with the answer."""
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):
            self.child.stdin.write(f"{solver} {seconds!r}\n".encode())
            self.child.stdin.flush()
        end, asked_to_end = monotonic() + 2.0 * seconds + GRACE_SECONDS, False
        while True:
            with suppress(Empty):
                line = self.told.get(timeout=_LOOK_SECONDS)
                break
            if cancelled() and not asked_to_end:
                asked_to_end, end = True, monotonic() + LAST_SECONDS
                self.child.send_signal(signal.SIGINT)
            if monotonic() > end:
                self.end()
                raise (
                    KeyboardInterrupt
                    if asked_to_end
                    else ProcessFaultError(f"it does not stop: its limit of {seconds:g} s is long over")
                )
        if not line:
            self.child.wait()
            if asked_to_end:
                raise KeyboardInterrupt
            raise ProcessFaultError(f"its process died: {child.last_words(self.child, self.folder)}")
        return self.folder / line.decode().strip()

    def end(self) -> None:
        child.kill(self.child)
        for stream in (self.child.stdin, self.child.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def write(path: Path, told: dict[str, Any], schedule: Schedule | None) -> None:
    """The child's side of `_read`."""
    columns: dict[str, Any] = {}
    if schedule is not None:
        columns = {name: getattr(schedule, name) for name in ("verbs", "targets", "wheres")}
        told = {**told, "initial": [sorted(map(int, named)) for named in vars(schedule.initial).values()]}
    np.savez(path, told=np.array(json.dumps(told)), **columns)


def _read(path: Path) -> Answer:
    with np.load(path) as stored:
        told: dict[str, Any] = json.loads(str(stored["told"]))
        columns = [stored[name] for name in ("verbs", "targets", "wheres")] if "status" in told else []
    path.unlink()
    if columns:
        host, disk, both = told["initial"]
        verbs, targets, wheres = columns
        schedule = Schedule(
            verbs, targets, wheres, Initial(frozenset(host), frozenset(disk), frozenset(both))
        )
        status, notes = Status(told["status"]), tuple(told["notes"])
        return Answer(schedule, status, interrupted=told["interrupted"], notes=notes)
    if "refused" in told:
        solver, budget, least, floor = told["refused"]
        if told["not_found"]:
            raise NotFoundError(solver, budget, floor, told["found"])
        raise InfeasibleError(solver, budget, least, floor)
    if "not_accepted" in told:
        raise NotAcceptedError(told["not_accepted"])
    raise KeyboardInterrupt if "ended" in told else ProcessFaultError(told["fault"])
