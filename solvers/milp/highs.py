"""HiGHS (https://highs.dev), the MILP solver that comes with memplan, in worker processes.

    solve, relax ──question──▶ `python -m memplan.solvers.milp.highs_worker` ──answer──▶ solve, relax

HiGHS may go on for seconds after it was asked to stop, and a thread inside it when the interpreter ends takes
the whole program down with it (`terminate called without an active exception`). A process can be ended at any
moment: when it does not stop within LAST_SECONDS, and when the program ends. Nothing that was found is lost
with it: each better solution is written to a file when it is found.

A worker takes 0.1 s to start and then some milliseconds per question. It is used for one question after
another, by one thread at a time, and ends by itself when it has had none for some seconds. The clock is on
this side: HiGHS never gets a time limit, because it plans by it and then gives another of equally good
answers.
Reference: Q. Huangfu, J. A. J. Hall, Parallelizing the dual revised simplex method, 2018,
doi:10.1007/s12532-017-0130-5.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np

from ...graphs.arrays import Floats
from ...graphs.folders.scratch import Scratch
from .. import child
from ..child import Dialogue
from .exchange import load
from .model import Program
from .process import save_question, told_settings
from .result import BackendError, Outcome, Progress, Result, Settings, bound_below

WORKER = "memplan.solvers.milp.highs_worker"

PROGRESS = "progress "
"""The start of a line with an incumbent, a bound and seconds, while HiGHS goes on."""

_LOOK_SECONDS = 0.05


def solve(
    program: Program,
    settings: Settings,
    time_limit: float | None,
    start: Mapping[int, float],
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> Result:
    """Solve a program as milp.solve does, without its scaling and checks. cancelled: whether to stop now."""
    chosen = {"settings": told_settings(settings), "start": list(start.items())}
    best = Progress(inf, -inf, 0.0)

    def tell(news: Progress) -> None:
        nonlocal best
        best = news
        progress(news)

    ended = _ask("solve", program, chosen, time_limit, tell, cancelled)
    if ended.told is None:
        outcome = Outcome.UNKNOWN if ended.x is None else Outcome.FEASIBLE
        return Result(outcome, None, bound_below(program, best.bound), ended.x, ended.interrupted)
    told = ended.told
    outcome, bound = Outcome(told["outcome"]), bound_below(program, told["bound"])
    return Result(outcome, told["objective"], bound, ended.x, ended.interrupted, told["nodes"])


@dataclass(frozen=True, eq=False)
class Relaxation:
    """x: values of the columns. prices: of the rows. ray: prices that prove there is no solution (Farkas).
    Each None where HiGHS gives none; none is checked."""

    x: Floats | None
    prices: Floats | None
    ray: Floats | None
    interrupted: bool


def relax(
    program: Program, time_limit: float | None, cancelled: Callable[[], bool] = lambda: False
) -> Relaxation:
    """Solve a program with its integers as fractions, by the interior-point method without crossover.
    Empty when HiGHS had to be ended."""
    ended = _ask("relax", program, {}, time_limit, lambda _progress: None, cancelled)
    return Relaxation(ended.x, ended.prices, ended.ray, ended.interrupted)


@dataclass(frozen=True, eq=False)
class _Ended:
    """told: the worker's answer, None when it had to be ended; x is then the best solution found so far."""

    told: dict[str, Any] | None
    x: Floats | None
    interrupted: bool
    prices: Floats | None = None
    ray: Floats | None = None


class _Worker:
    """A worker process, its folder and the number of its last question."""

    def __init__(self) -> None:
        self.scratch, self.number = Scratch("highs"), 0
        self.folder = Path(self.scratch.name)
        self.dialogue = Dialogue(WORKER, self.folder)
        self.end = weakref.finalize(self, _end, os.getpid(), self.dialogue, self.scratch)

    def ask(self, kind: str, program: Program, chosen: Mapping[str, Any], stopped: bool) -> None:
        """stopped: HiGHS is to stop at once, with what it finds by then."""
        self.number += 1
        (self.folder / "incumbent.npy").unlink(missing_ok=True)  # a slow worker would do it too late
        save_question(self.folder / "question", program, {**chosen, "stopped": stopped})
        self.dialogue.say(f"{kind} {self.number}")

    def stop(self) -> None:
        self.dialogue.say(f"stop {self.number}")

    def incumbent(self) -> Floats | None:
        """The best solution so far of the question under way."""
        with suppress(OSError, ValueError):
            return np.load(self.folder / "incumbent.npy")
        return None


def _end(owner: int, dialogue: Dialogue, scratch: Scratch) -> None:
    """End a worker, at the latest when the program ends. A fork of the program leaves it alone."""
    if os.getpid() == owner:
        dialogue.end()
        scratch.cleanup()


_idle: dict[int, list[_Worker]] = {}
"""Workers without a question, by the process that started them: a fork can't use its parent's pipes."""
_lock = Lock()


def _taken() -> _Worker:
    while True:
        with _lock:
            idle = _idle.setdefault(os.getpid(), [])
            worker = idle.pop() if idle else None
        if worker is None:
            return _Worker()
        if worker.dialogue.child.poll() is None:
            return worker
        worker.end()


def _ask(
    kind: str,
    program: Program,
    chosen: Mapping[str, Any],
    time_limit: float | None,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> _Ended:
    """Run to the end, the limit, or the first Ctrl-C. A second one ends the worker and goes through."""
    limit = inf if time_limit is None else time_limit
    end = monotonic() + limit
    worker = _taken()
    try:
        worker.ask(kind, program, chosen, limit <= 0)
        ended = _answer(worker, end, progress, cancelled)
        if ended is None:  # it had just begun to end by itself, being idle: a new one has the question
            worker.end()
            worker = _Worker()
            worker.ask(kind, program, chosen, limit <= 0)
            ended = _answer(worker, end, progress, cancelled)
    except BaseException:
        worker.end()
        raise
    if ended is None:
        raise BackendError(f"highs crashed: {worker.dialogue.last_words()}")
    if ended.told is None:
        worker.end()
    else:
        with _lock:
            _idle[os.getpid()].append(worker)
        if "error" in ended.told:
            raise BackendError(ended.told["error"])
    return ended


def _answer(
    worker: _Worker, end: float, progress: Callable[[Progress], None], cancelled: Callable[[], bool]
) -> _Ended | None:
    """end: by the clock. None: the worker ended by itself, without a fault. Raises BackendError."""
    stopped, interrupted = inf, False
    while True:
        try:
            left = max(0.0, end - monotonic()) if stopped == inf else _LOOK_SECONDS
            line = worker.dialogue.hear(min(_LOOK_SECONDS, left))
            if line == "":
                if worker.dialogue.child.returncode == 0:
                    return None
                raise BackendError(f"highs crashed: {worker.dialogue.last_words()}")
            if line and line.startswith(PROGRESS):
                progress(Progress(*map(float, line.removeprefix(PROGRESS).split())))
            elif line:
                return _read(worker.folder / "answer", interrupted)
            if stopped == inf and (monotonic() >= end or cancelled()):
                stopped = monotonic()
                worker.stop()
            elif monotonic() > stopped + child.LAST_SECONDS:
                worker.dialogue.end()  # before its file is read: nothing writes there any more
                return _Ended(None, worker.incumbent(), interrupted)
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted, end = True, 0.0


def _read(path: Path, interrupted: bool) -> _Ended:
    told, arrays = load(path)
    return _Ended(told, arrays.get("x"), interrupted, arrays.get("prices"), arrays.get("ray"))
