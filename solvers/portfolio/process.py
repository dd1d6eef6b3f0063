"""Processes that solve one problem with any solver, line after line, for portfolios on large graphs.

    Processes.solve ──"solver end settings"──▶ `python -m memplan.solvers.portfolio.child` ──answer.npz──▶
                                                     what is found on the way, in seconds: "found 2.5"

Threads would wait for each other's Python there. A process takes a second or two to start, which its first
line's seconds pay, so each is used again; one that dies costs the line that it was at. Ctrl-C reaches us
alone and is passed on, so that the solver in the process ends with its best so far. A process ends when we
do: its input is then closed. Only numbers and JSON travel, no pickle.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import mkdtemp
from time import monotonic, time
from types import TracebackType
from typing import Any

import numpy as np

from ...graphs.files.files import save_graph
from ...graphs.folders.scratch import Scratch
from ...planner.schedule.schedule import Initial, Schedule
from .. import child
from ..child import Dialogue
from ..problem import Answer, InfeasibleError, NotAcceptedError, NotFoundError, Problem, Status
from ..race import Race
from .lines import Cancelled

_LOOK_SECONDS, _REPEAT_SECONDS = 0.1, 1.0

GRACE_SECONDS = 300.0
"""How long after its time limit, and as much again, a line may be at work before it counts as hung: what is
compiled at its first use takes a minute on a busy machine."""

FOUND = "found "
"""Before the seconds of a schedule that a solver has found, while it goes on."""


class ProcessFaultError(Exception):
    """What a line raised in its process, or how that ended."""


class Processes:
    """Those of one problem, as many as lines are under way at once."""

    def __init__(
        self,
        problem: Problem,
        niceness: int = 0,
        race: Race | None = None,
    ) -> None:
        """niceness: by which the processes step back behind others. race: is told of schedules as the solvers
        find them."""
        self.folder, self._niceness = Scratch("lines"), niceness
        self._race = race or Race()
        self.idle: SimpleQueue[_Process] = SimpleQueue()
        self.all: list[_Process] = []
        machine = problem.machine or problem.graph.machine
        save_graph(replace(problem.graph, machine=machine), self.path / "graph.json")
        (self.path / "budget").write_text(str(problem.budget))

    @property
    def path(self) -> Path:
        return Path(self.folder.name)

    def solve(self, solver: str, settings: Mapping[str, str], seconds: float, cancelled: Cancelled) -> Answer:
        """What the solver of this name finds; its refusals as its own. settings: as text. Raises
        ProcessFaultError."""
        question = f"{solver} {time() + seconds!r} {json.dumps(settings)}"
        try:
            process = self.idle.get_nowait()
        except Empty:
            process = _Process(Path(mkdtemp(dir=self.path)), self.path, self._niceness)
            self.all.append(process)
        answer = process.ask(question, seconds, cancelled, partial(self._race.found, who=solver), self._leads)
        self.idle.put(process)  # one that failed is not used again
        return _read(answer)

    def _leads(self, seconds: float) -> bool:
        """No schedule is known that takes less."""
        return seconds <= self._race.best

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.all:
            process.end()
        self.folder.cleanup()


class _Process(Dialogue):
    def __init__(self, folder: Path, problem: Path, niceness: int) -> None:
        super().__init__("memplan.solvers.portfolio.child", folder, str(problem), str(niceness))

    def ask(
        self,
        question: str,
        seconds: float,
        cancelled: Cancelled,
        found: Callable[[float], None],
        leads: Callable[[float], bool],
    ) -> Path:
        """The file with the answer. leads: whether a schedule of so many seconds is the best known."""
        self.say(question)
        end, best = monotonic() + 2.0 * seconds + GRACE_SECONDS, inf
        asked_to_end = repeated = inf
        while (line := self.hear(_LOOK_SECONDS)) is None or line.startswith(FOUND):
            if line:
                best = float(line.removeprefix(FOUND))
                found(best)
            if asked_to_end == inf and cancelled():
                asked_to_end = repeated = monotonic()
            if monotonic() >= repeated:  # one that comes before the solver has begun is lost
                self.child.send_signal(signal.SIGINT)
                repeated += _REPEAT_SECONDS
            if asked_to_end < inf:
                keep = best < inf and leads(best)
                end = asked_to_end + (child.KEEP_SECONDS if keep else child.LAST_SECONDS)
            if monotonic() > end:
                self.end()
                raise (
                    KeyboardInterrupt
                    if asked_to_end < inf
                    else ProcessFaultError(f"it does not stop: its limit of {seconds:g} s is long over")
                )
        if not line:
            if asked_to_end < inf:
                raise KeyboardInterrupt
            raise ProcessFaultError(f"its process died: {self.last_words()}")
        return self.folder / line.strip()


def write(path: Path, told: dict[str, Any], schedule: Schedule | None) -> None:
    """The child's side of `_read`."""
    columns: dict[str, Any] = {}
    if schedule is not None:
        columns = {name: getattr(schedule, name) for name in ("verbs", "targets", "wheres")}
        groups = [[memories, sorted(map(int, tensors))] for memories, tensors in schedule.initial.groups]
        told = {**told, "initial": groups}
    np.savez(path, told=np.array(json.dumps(told)), **columns)


def _read(path: Path) -> Answer:
    with np.load(path) as stored:
        told: dict[str, Any] = json.loads(str(stored["told"]))
        columns = [stored[name] for name in ("verbs", "targets", "wheres")] if "status" in told else []
    path.unlink()
    if columns:
        initial = Initial(groups=[(tuple(memories), tensors) for memories, tensors in told["initial"]])
        verbs, targets, wheres = columns
        schedule = Schedule(verbs, targets, wheres, initial)
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
