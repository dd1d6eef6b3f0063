"""HiGHS (https://highs.dev), the MILP solver that comes with memplan, in worker processes.

    solve, relax ──program──▶ highs_worker.py ──incumbents, answer──▶ solve, relax

HiGHS may go on for seconds after it was asked to stop, and a thread inside it when the interpreter ends takes
the whole program down with it (`terminate called without an active exception`). A worker can be ended at any
moment: when it does not stop within LAST_SECONDS, and when the program ends. Nothing that was found is lost
with it: each better solution is sent when it is found.

A worker takes 0.1 s to start and then some milliseconds per program. It is used for one program after
another, and ends by itself when it has had none for some seconds. The clock is on this side: HiGHS never gets
a time limit, because it plans by it and then gives another of equally good answers.
Reference: Q. Huangfu, J. A. J. Hall, Parallelizing the dual revised simplex method, 2018,
doi:10.1007/s12532-017-0130-5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Any

from ...graphs.arrays import Floats
from ..workers.worker import Ending, Pool, WorkerCrashedError, WorkerFaultError
from .model import Program
from .result import BackendError, MilpStatus, Progress, Result, Settings, bound_below

SOLVE = "memplan.solvers.milp.highs_worker:solve"
RELAX = "memplan.solvers.milp.highs_worker:relax"

IDLE_SECONDS = 20.0
"""A worker without a program for so long ends: it holds 60 MB, and a new one takes 0.1 s to start."""

WORKERS = Pool("highs", idle_seconds=IDLE_SECONDS)


def solve(
    program: Program,
    settings: Settings,
    time_limit: float | None,
    start: Mapping[int, float],
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> Result:
    """Solve a program as milp.solve does, without its scaling and checks. cancelled: whether to stop now."""
    best, incumbent = Progress(inf, -inf, 0.0), None

    def take(event: Progress | Floats) -> None:
        nonlocal best, incumbent
        if isinstance(event, Progress):
            best = event
            progress(event)
        else:
            incumbent = event

    ending = _call(SOLVE, (program, settings.of_backend(), dict(start)), time_limit, cancelled, take)
    if ending.answered:
        found: Result = ending.value
        return replace(found, bound=bound_below(program, found.bound), interrupted=ending.interrupted)
    status = MilpStatus.UNKNOWN if incumbent is None else MilpStatus.FEASIBLE
    return Result(status, None, bound_below(program, best.bound), incumbent, ending.interrupted)


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A solution in fractions. Each array is None if HiGHS gives none; none is checked.

    x: values of the columns.
    prices: of the rows.
    ray: prices that prove there is no solution (Farkas).
    """

    x: Floats | None = None
    prices: Floats | None = None
    ray: Floats | None = None
    interrupted: bool = False


def relax(
    program: Program,
    time_limit: float | None,
    cancelled: Callable[[], bool] = lambda: False,
    *,
    presolve: bool = True,
) -> Relaxation:
    """Solve a program with its integers as fractions, by the interior-point method without crossover.
    Empty when HiGHS had to be ended."""
    ending = _call(RELAX, (program, presolve), time_limit, cancelled, lambda _event: None)
    return replace(ending.value if ending.answered else Relaxation(), interrupted=ending.interrupted)


def _call(
    function: str,
    arguments: tuple[object, ...],
    time_limit: float | None,
    cancelled: Callable[[], bool],
    event: Callable[[Any], None],
) -> Ending:
    """Run to the end, the limit, or the first Ctrl-C. A second one ends the worker and goes through."""
    limit = inf if time_limit is None else time_limit
    # no time is an argument: a worker that is asked to stop after it began may have its answer, or not
    stopped = limit <= 0
    end = monotonic() + limit
    try:
        return WORKERS.call(function, *arguments, stopped, end=end, cancelled=cancelled, event=event)
    except (WorkerCrashedError, WorkerFaultError) as error:
        raise BackendError(f"highs crashed: {error}") from None
