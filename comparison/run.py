"""The trials of a comparison, some at a time, each in a process of its own.

So no solver profits from the row before, and one that crashes or hangs costs its own row only.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from contextlib import closing
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

from joblib import Parallel, delayed

from ..graphs.folders.scratch import Scratch
from ..solvers import child
from ..solvers.cluster import check_backend, connected
from . import trial as comparison_trial
from .trials import UNKNOWN, Bounds, Outcome, Place, Row, Trial, row

GRACE_SECONDS = 20.0
"""How long after its time limit a trial may still be at work, the reading of the graph included."""

WARM_UP_SECONDS = 300.0
"""How long a trial may take to begin; the first use of a compiled solver compiles it."""

_LOOK_SECONDS = 0.02

Ending = dict[str, Any]
"""A trial's answer, as trial.py writes it."""


def run(
    trials: Iterable[Trial],
    workers: int,
    bound_seconds: float,
    known: Iterable[Row] = (),
    backend: str = "loky",
) -> Generator[Row]:
    """The rows, as the trials end. Close the generator to end those that are under way.

    bound_seconds: for lower bounds; they are looked for once for each graph and budget, and not where one of
    the rows `known` has them. backend: of solvers/cluster.py; on a cluster there are as many at a time as it
    has workers, which find the graphs under the same paths.
    """
    check_backend(backend)
    bounds: dict[Place, Bounds] = {}
    for one in known:
        _learn(bounds, one)
    ends = (
        _here(trials, workers, bound_seconds, bounds)
        if backend == "loky"
        else _on_cluster(backend, trials, bound_seconds, bounds)
    )
    with closing(ends):
        for trial, ending in ends:
            found = row(trial, ending, bounds.get(trial.place, UNKNOWN))
            _learn(bounds, found)
            yield found


def _here(
    trials: Iterable[Trial], workers: int, bound_seconds: float, bounds: dict[Place, Bounds]
) -> Generator[tuple[Trial, Ending]]:
    waiting = iter(trials)
    running: list[_Running] = []
    with Scratch("bench") as folder:
        try:
            while True:
                while len(running) < workers and (trial := next(waiting, None)):
                    needed = 0.0 if trial.place in bounds else bound_seconds
                    running.append(_Running(trial, Path(folder), needed))
                if not running:
                    return
                sleep(_LOOK_SECONDS)
                for one in [one for one in running if one.ended()]:
                    running.remove(one)
                    yield one.trial, one.ending()
        finally:
            for one in running:
                child.stop(one.child)


def _on_cluster(
    backend: str, trials: Iterable[Trial], bound_seconds: float, bounds: dict[Place, Bounds]
) -> Generator[tuple[Trial, Ending]]:
    """Each trial is a process of its own there too."""
    with connected(backend):
        tasks = (delayed(_there)(trial, 0.0 if trial.place in bounds else bound_seconds) for trial in trials)
        yield from cast(
            "Generator[tuple[Trial, Ending]]", Parallel(n_jobs=-1, return_as="generator_unordered")(tasks)
        )


def _there(trial: Trial, bound_seconds: float) -> tuple[Trial, Ending]:
    with closing(_here([trial], 1, bound_seconds, {})) as ends:
        return next(ends)


def _learn(bounds: dict[Place, Bounds], row: Row) -> None:
    if row.lower_bound is not None:
        bounds[row.place] = bounds.get(row.place, UNKNOWN).joined(row.bounds)


class _Running:
    """A trial under way."""

    def __init__(self, trial: Trial, folder: Path, bound_seconds: float) -> None:
        self.trial, self.started = trial, monotonic()
        limit = inf if trial.time_limit is None else trial.time_limit
        self.allowed, self.measured = limit + bound_seconds + GRACE_SECONDS, False
        self.end = self.started + WARM_UP_SECONDS + self.allowed
        self.folder = folder / str(self.started)
        self.folder.mkdir()
        question, self.begun, self.answer = (self.folder / name for name in ("question", "started", "answer"))
        question.write_text(json.dumps(comparison_trial.question(trial, bound_seconds)))
        files = map(str, (question, self.begun, self.answer))
        self.child = child.start(comparison_trial.__name__, self.folder, *files)

    def ended(self) -> bool:
        if not self.measured and self.begun.exists():
            self.measured, self.started = True, monotonic()
            self.end = self.started + self.allowed
        return self.child.poll() is not None or monotonic() > self.end

    def ending(self) -> Ending:
        seconds, late = monotonic() - self.started, self.child.poll() is None
        child.stop(self.child)
        if late:
            fault = f"still at work {GRACE_SECONDS:g} s after its time limit: ended"
            return {"outcome": Outcome.TIMEOUT, "seconds": seconds, "message": fault}
        if self.child.returncode or not self.answer.exists():
            crash = f"its process crashed: {child.last_words(self.child, self.folder)}"
            return {"outcome": Outcome.FAULT, "seconds": seconds, "message": crash}
        return json.loads(self.answer.read_text())
