"""A process that works through cases, watched by the one that started it: it may crash, or not come back.

Tasks go in and outcomes come out through a pipe. Random numbers depend on seed, area and number alone.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, NamedTuple

from .area import Area, Fault, judged
from .areas import area_called
from .shrink import shrunk

EACH_KIND = 2
"""So many cases of a kind of fault are written."""

MOST_GROWTH = 512 * 2**20
"""Bytes by which one case may raise the largest size of its process."""

MOST_BYTES = 4 * 2**30
"""Of address space above what a fresh worker has: what runs away meets an error, not the machine's end."""


class Task(NamedTuple):
    """known: kinds of faults that need not be written again. died: how the last worker ended on it."""

    area: str
    number: int
    known: tuple[str, ...] = ()
    died: str = ""


@dataclass
class Outcome:
    """counts: what ran. folders: of the faults that were written."""

    task: Task
    counts: dict[str, int] = field(default_factory=dict[str, int])
    faults: list[Fault] = field(default_factory=list[Fault])
    folders: list[Path] = field(default_factory=list[Path])
    seconds: float = 0.0


class Shrinking(NamedTuple):
    """Said before a fault is made smaller: the case has come back."""


@dataclass
class Worker:
    """began, worked: time and processor seconds when its task was given, or its fault is made smaller."""

    process: BaseProcess
    pipe: Connection
    log: Path
    task: Task | None = None
    began: float = 0.0
    worked: float = 0.0
    shrinking: bool = False

    @staticmethod
    def start(
        context: ForkContext | SpawnContext, seed: int, folder: Path, number: int, areas: list[str]
    ) -> Worker:
        here, there = context.Pipe()
        log = folder / f"worker-{number}.log"
        process = context.Process(target=work, args=(there, seed, folder, log, areas), daemon=False)
        process.start()
        there.close()
        return Worker(process, here, log)

    def give(self, task: Task) -> None:
        self.task, self.shrinking = task, False
        self._start_clock()
        self.pipe.send(task)

    def shrink(self) -> None:
        self.shrinking = True
        self._start_clock()

    def _start_clock(self) -> None:
        self.began, self.worked = monotonic(), self._processor_seconds()

    def seconds(self) -> float:
        """Since its task was given: on a busy machine not what has passed, but a tenth of it at least."""
        passed = monotonic() - self.began
        return min(passed, max(self._processor_seconds() - self.worked, passed / 10))

    def _processor_seconds(self) -> float:
        """Of the process and the children that have ended."""
        with suppress(OSError):
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def end(self) -> None:
        """With all that it has started: it leads a process group."""
        for stop in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                stop()
                self.process.join(5)
        self.pipe.close()


def work(pipe: Connection, seed: int, folder: Path, log: Path, areas: list[str]) -> None:
    """What a worker does, until its pipe is closed."""
    os.setpgid(0, 0)
    if os.access("/dev/shm", os.W_OK):  # files that nobody keeps
        tempfile.tempdir = "/dev/shm"
    stream = log.open("w")
    os.dup2(stream.fileno(), 2)
    faulthandler.enable(stream)
    held = {name: area_called(name) for name in areas}
    for area in held.values():
        area.warm_up()
    _limit_memory()
    pipe.send(None)
    while True:
        try:
            task: Task = pipe.recv()
        except EOFError:
            return
        pipe.send(_outcome(pipe, held[task.area], task, seed, folder, stream))


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, hard))


def case_of(area: Area, seed: int, number: int) -> Any:
    return area.make(Random(f"{seed} {area.name} {number}"))


def _outcome(pipe: Connection, area: Area, task: Task, seed: int, folder: Path, log: Any) -> Outcome:
    begin = monotonic()
    case = case_of(area, seed, task.number)
    outcome = Outcome(task)
    if task.died:
        outcome.faults.append(Fault(task.died.split(":")[0], task.died))
    else:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        faulthandler.dump_traceback_later(0.9 * area.patience, file=log)
        found = judged(area, case)
        faulthandler.cancel_dump_traceback_later()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        outcome.counts, outcome.faults = found.counts, found.faults
        if grown > MOST_GROWTH:
            outcome.faults.append(Fault("grows", f"the process grew by {grown / 2**20:.0f} MiB"))
    outcome.seconds = monotonic() - begin
    for fault in outcome.faults:
        if fault.kind in task.known:
            continue
        pipe.send(Shrinking())
        small, shown = (case, fault) if task.died or fault.kind == "grows" else shrunk(area, case, fault)
        outcome.folders.append(_written(area, small, shown, task, seed, folder))
    return outcome


def _written(area: Area, case: Any, fault: Fault, task: Task, seed: int, folder: Path) -> Path:
    kind = "".join(letter if letter.isalnum() else "-" for letter in fault.kind)[:60].strip("-")
    place = folder / f"{area.name}-{task.number}-{kind}"
    place.mkdir(parents=True, exist_ok=True)
    lines = area.write(case, place, None if task.died else fault)
    whole = f"python benchmarks/fuzz.py --only {area.name} --seed {seed} --case {task.number}"
    text = [f"# {' '.join(fault.detail.split())}", *lines, f"# as it was found: {whole}", ""]
    (place / "reproduce.sh").write_text("\n".join(text), errors="backslashreplace")
    return place
