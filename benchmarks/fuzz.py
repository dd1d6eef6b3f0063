"""The fuzzer: odd files, schedules, graphs, settings and command lines, for as long as there is patience.

    readers    graph, machine, schedule and table files, changed here and there: read, or refused in one line
    imports    files of other tools, changed, cut short or of another kind: imported, or refused in one line
    schedules  random and spoilt schedules, sharded too: the simulator and the second replay say the same
    solvers    all solvers on odd graphs: no error but a refusal, no bound above a time, both replays agree
    settings   `plan solve --set` with any values: solved, or refused in one line
    commands   command lines of all commands that need no model: an exit code of ours and one line
    partition  clusters of odd graphs: every operation in one, in a valid order

Cases follow from --seed alone; how many are run depends on the time. A case that does not come back, crashes
or takes the memory is a fault too. A fault is made smaller and written into a folder of its own, with the
command lines that show it. Exit code 1 where there was any.

    python benchmarks/fuzz.py [--minutes M] [--most CASES] [--seed S] [--only AREA] [--jobs N] [-o FOLDER]
    python benchmarks/fuzz.py [--seed S] --only AREA --case NUMBER
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from fuzzing.area import Fault
from fuzzing.areas import SHARES, area_called
from fuzzing.worker import EACH_KIND, Outcome, Shrinking, Task, Worker

START_SECONDS = 900.0
SHRINK_SECONDS = 400.0
"""How long a worker may take to start, and to make a fault smaller."""

CASES_BEFORE_FRESH = 5_000
"""Then a worker is replaced."""


class Fuzzer:
    """spent: seconds of cases by area. ran: counts by area. kinds: faults by area and kind."""

    def __init__(self, areas: list[str], seed: int, folder: Path, first: int = 0) -> None:
        self.areas, self.seed, self.folder = areas, seed, folder
        self.context: ForkContext | SpawnContext = multiprocessing.get_context("spawn")
        self.patience = {name: area_called(name).patience for name in areas}
        self.next = dict.fromkeys(areas, first)
        self.spent = dict.fromkeys(areas, 0.0)
        self.ran: dict[str, Counter[str]] = defaultdict(Counter)
        self.kinds: dict[tuple[str, str], list[Fault]] = defaultdict(list)
        self.started = 0
        self.repeat: list[Task] = []

    def run(self, jobs: int, seconds: float, most: int | None = None) -> None:
        """For so long, or so many cases of each area."""
        end = monotonic() + seconds
        workers = [self._fresh() for _job in range(jobs)]
        try:
            while True:
                for number, worker in enumerate(workers):
                    if worker.task is None and (task := self._task(end, most)) is not None:
                        if sum(self.next.values()) // jobs % CASES_BEFORE_FRESH == CASES_BEFORE_FRESH - 1:
                            worker.end()
                            workers[number] = worker = self._fresh()
                        worker.give(task)
                busy = [worker for worker in workers if worker.task is not None]
                if not busy:
                    return
                wait([worker.pipe for worker in busy], timeout=1.0)
                for number, worker in enumerate(workers):
                    if worker.task is not None and not self._heard(worker):
                        workers[number] = self._fresh()
        finally:
            for worker in workers:
                _ended(worker)

    def _fresh(self) -> Worker:
        self.started += 1
        worker = Worker.start(self.context, self.seed, self.folder, self.started, self.areas)
        with suppress(EOFError):
            if worker.pipe.poll(START_SECONDS):
                worker.pipe.recv()
                return worker
        worker.end()
        raise SystemExit(f"worker {self.started} does not start: {worker.log} says why")

    def _task(self, end: float, most: int | None) -> Task | None:
        """Of the area that has had least of its share."""
        if self.repeat:
            return self.repeat.pop()
        left = [area for area in self.areas if most is None or self.next[area] < most]
        if not left or monotonic() > end:
            return None
        area = min(left, key=lambda name: self.spent[name] / SHARES[name])
        known = (kind for (of, kind), found in self.kinds.items() if of == area and len(found) >= EACH_KIND)
        self.next[area] += 1
        return Task(area, self.next[area] - 1, tuple(known))

    def _heard(self, worker: Worker) -> bool:
        """False where the worker has ended, or had to be."""
        task = worker.task
        assert task is not None
        try:
            while worker.pipe.poll():
                said = worker.pipe.recv()
                if isinstance(said, Shrinking):
                    worker.shrink()
                else:
                    self._done(said)
                    worker.task = None
                    return True
        except (EOFError, ConnectionResetError):
            worker.process.join(10)
            self._died(worker, f"crashed: exit status {worker.process.exitcode}")
            return False
        patience = SHRINK_SECONDS if worker.shrinking else self.patience[task.area]
        if worker.seconds() > patience:
            self._died(worker, f"does not come back: not in {patience:.0f} s")
            return False
        return True

    def _died(self, worker: Worker, how: str) -> None:
        """The case is given again, to be written and no more."""
        task = worker.task
        assert task is not None
        _ended(worker)
        print(f"{task.area} {task.number}: {how}; {worker.log} says where", flush=True)
        if not task.died:
            self.spent[task.area] += monotonic() - worker.began
            self.repeat.append(task._replace(died=how))

    def _done(self, outcome: Outcome) -> None:
        area = outcome.task.area
        self.spent[area] += outcome.seconds
        if not outcome.task.died:
            self.ran[area].update(outcome.counts)
            self.ran[area]["cases"] += 1
        else:
            self.ran[area]["cases that did not come back"] += 1
        for fault in outcome.faults:
            self.kinds[area, fault.kind].append(fault)
        for fault, place in zip(outcome.faults, outcome.folders, strict=False):
            print(f"{area} {outcome.task.number}: {fault.detail[:200]}\n    {place}", flush=True)

    def report(self) -> None:
        for area in self.areas:
            counts = Counter(self.ran[area])
            cases = counts.pop("cases", 0)
            print(f"{area}: {cases:,} cases in {self.spent[area]:,.0f} s")
            if counts:
                print("    " + ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
        for (area, kind), found in sorted(self.kinds.items(), key=lambda item: -len(item[1])):
            print(f"{area}: {len(found)} × {kind}")
        print(f"{sum(map(len, self.kinds.values()))} faults of {len(self.kinds)} kinds")


def _ended(worker: Worker) -> None:
    group = worker.process.pid
    worker.end()
    if group is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(SHARES), help="may be given several times")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each area")
    parser.add_argument("--most", type=int, help="cases of each area [default: as many as there is time for]")
    parser.add_argument("--case", type=int, help="this one of an area, alone")
    parser.add_argument("-o", "--output", type=Path, help="where faults are written [default: a new folder]")
    options = parser.parse_args()
    folder: Path = options.output or Path(tempfile.mkdtemp(prefix="memplan-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    alone = options.case is not None
    fuzzer = Fuzzer(
        options.only or list(SHARES), options.seed, folder, options.case if alone else options.first
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begin = monotonic()
    with suppress(KeyboardInterrupt):
        most = options.case + 1 if alone else options.first + options.most if options.most else None
        fuzzer.run(1 if alone else options.jobs, 60 * options.minutes, most)
    fuzzer.report()
    print(f"{monotonic() - begin:,.0f} s, seed {options.seed}, {folder}")
    return 1 if fuzzer.kinds else 0


if __name__ == "__main__":
    sys.exit(main())
