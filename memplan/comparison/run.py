"""The trials of a comparison, several at a time, each in a worker process of its own.

So no solver profits from the row before, and one that crashes or hangs costs its own row only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from math import inf
from time import monotonic, sleep
from typing import cast

from joblib import Parallel, delayed

from ..solvers.workers.cluster import check_backend, connected
from ..solvers.workers.worker import Message, MessageKind, Worker, WorkerCrashedError, WorkerFaultError
from .trial import Ending
from .trials import UNKNOWN, Bounds, Outcome, Place, Row, Trial, row

GRACE_SECONDS = 20.0
"""Seconds after its time limit in which a trial may still run, including the reading of the graph."""

WARM_UP_SECONDS = 300.0
"""Seconds that a trial may take to begin; the first use of a compiled solver compiles it."""

TRIAL = "memplan.comparison.trial:run"

_LOOK_SECONDS = 0.02


def run(
    trials: Iterable[Trial],
    workers: int,
    bound_seconds: float,
    known: Iterable[Row] = (),
    backend: str = "loky",
) -> Generator[Row]:
    """Yield the rows as the trials end. Close the generator to end those that are running.

    bound_seconds: for lower bounds. They are computed once per graph and budget, and not if one of the rows
        `known` has them.
    backend: one of solvers/workers/cluster.py. On a cluster as many trials run at a time as it has workers,
        which find the graphs under the same paths.
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
    try:
        while True:
            while len(running) < workers and (trial := next(waiting, None)):
                # Trials of one problem that run together may each compute its bounds: none is known before
                # one ends.
                running.append(_Running(trial, 0.0 if trial.place in bounds else bound_seconds))
            if not running:
                return
            sleep(_LOOK_SECONDS)
            for one in [one for one in running if one.ended()]:
                running.remove(one)
                yield one.trial, one.ending()
    finally:
        for one in running:
            one.worker.end_gently()


def _on_cluster(
    backend: str, trials: Iterable[Trial], bound_seconds: float, bounds: dict[Place, Bounds]
) -> Generator[tuple[Trial, Ending]]:
    """Yield the trials as workers of a cluster end them. Each trial is a process of its own there too."""
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
    """A trial that is running."""

    def __init__(self, trial: Trial, bound_seconds: float) -> None:
        self.trial, self.started = trial, monotonic()
        limit = inf if trial.time_limit is None else trial.time_limit
        self.allowed = limit + bound_seconds + GRACE_SECONDS
        # The warm-up is included until STARTED is heard.
        self.end = self.started + WARM_UP_SECONDS + self.allowed
        self.last: Message | None = None
        self.worker = Worker("bench")
        self.worker.call(TRIAL, trial, bound_seconds)

    def ended(self) -> bool:
        message = self.worker.hear(0.0)
        if message is not None and message.kind == MessageKind.EVENT:  # STARTED: the clock runs from here on
            self.started = monotonic()
            self.end = self.started + self.allowed
        else:
            self.last = message
        return self.last is not None or monotonic() > self.end

    def ending(self) -> Ending:
        """Return how the trial ended, and end its worker with all processes that it started."""
        seconds = monotonic() - self.started
        try:
            if self.last is None:
                fault = f"still at work {GRACE_SECONDS:g} s after its time limit: ended"
                return {"outcome": Outcome.TIMEOUT, "seconds": seconds, "message": fault}
            return self.worker.result(self.last)
        except (WorkerCrashedError, WorkerFaultError) as crash:
            fault = f"its process crashed: {crash}"
            return {"outcome": Outcome.FAULT, "seconds": seconds, "message": fault}
        finally:
            self.worker.end_gently()
