"""HiGHS (https://highs.dev), the MILP solver that comes with memplan, given the program's arrays as they are.

It runs in a thread of its own, so Ctrl-C stops it and its best solution is kept. It does not know its time
limit until that is over: HiGHS plans by it, and of equally good answers gave now one, now the other.
Reference: Q. Huangfu, J. A. J. Hall, Parallelizing the dual revised simplex method, 2018,
doi:10.1007/s12532-017-0130-5.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic

import highspy
import numpy as np

from ...graphs.arrays import Floats
from .model import Program
from .result import BackendError, Outcome, Progress, Result, Settings, bound_below
from .write import lp_of

GRACE_SECONDS = 120.0
"""How long after its time limit HiGHS may still be at work before it counts as hung."""

BOUND_GRACE_SECONDS = 3.0
"""The same for bounds, which may go without an answer. HiGHS ends once it looks at what it was told."""


def solve(
    program: Program,
    settings: Settings,
    time_limit: float | None,
    start: Mapping[int, float],
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool] = lambda: False,
    grace: float = GRACE_SECONDS,
) -> Result:
    """As milp.solve. cancelled: its time is over. grace: seconds after the limit until BackendError."""
    highs = highspy.Highs()
    options: dict[str, bool | int | float] = {
        "log_to_console": False,  # with output_flag off there would be no progress either
        "mip_feasibility_tolerance": program.tolerance,
        "primal_feasibility_tolerance": program.tolerance,
        "mip_rel_gap": settings.gap,
        "random_seed": settings.seed,
    }
    if settings.threads is not None:
        highspy.Highs.resetGlobalScheduler(True)
        options["threads"] = settings.threads
    for name, value in options.items():
        if highs.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise BackendError(f"highs does not accept {name} = {value}")
    if highs.passModel(lp_of(program)) == highspy.HighsStatus.kError:
        raise BackendError(f"highs does not accept the model of {program.size}")
    if start:
        highs.setSolution(
            len(start), np.array(list(start), np.int32), np.array(list(start.values()), np.float64)
        )
    result = _result(program, highs, *_run(highs, time_limit, progress, cancelled, grace))
    nodes: int = highs.getInfo().mip_node_count
    return result if nodes < 0 else replace(result, nodes=nodes)


class _LateError(BackendError):
    """HiGHS is still at work long after it was told to stop."""


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
    """The program with its integers as fractions, by the interior-point method without crossover. Nothing
    where HiGHS does not stop."""
    try:
        return _relaxation(program, time_limit, cancelled)
    except _LateError:
        return Relaxation(None, None, None, interrupted=False)


def _relaxation(program: Program, time_limit: float | None, cancelled: Callable[[], bool]) -> Relaxation:
    highs = highspy.Highs()
    options: dict[str, bool | str] = {"output_flag": False, "solver": "ipm", "run_crossover": "off"}
    for name, value in options.items():
        highs.setOptionValue(name, value)
    if highs.passModel(lp_of(program, whole=False)) == highspy.HighsStatus.kError:
        raise BackendError(f"highs does not accept the model of {program.size}")

    def run() -> bool:
        return _run(highs, time_limit, lambda _progress: None, cancelled, BOUND_GRACE_SECONDS)[1]

    interrupted = run()
    ray = None
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        highs.setOptionValue("solver", "simplex")
        highs.setOptionValue("presolve", "off")
        interrupted |= run()
        _status, found, values = highs.getDualRay()  # pyright: ignore[reportAttributeAccessIssue]
        ray = np.array(values, np.float64) if found else None
    solution = highs.getSolution()
    x = np.array(solution.col_value, np.float64) if solution.value_valid else None
    prices = np.array(solution.row_dual, np.float64) if solution.dual_valid else None
    return Relaxation(x, prices, ray, interrupted)


def _run(
    highs: highspy.Highs,
    time_limit: float | None,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    grace: float,
) -> tuple[bool, bool]:
    """Run to the end, the limit, or the first Ctrl-C: whether it was halted, whether by Ctrl-C. A second one
    goes through."""
    stop, done = Event(), Event()
    news: SimpleQueue[Progress] = SimpleQueue()

    def interrupt(event: highspy.HighsCallbackEvent) -> None:
        if stop.is_set() and event.data_in is not None:
            event.data_in.user_interrupt = True

    def log(event: highspy.HighsCallbackEvent) -> None:
        data = event.data_out
        if data.mip_primal_bound > data.mip_dual_bound:  # else: done, or a start is being completed
            news.put(Progress(data.mip_primal_bound, data.mip_dual_bound, data.running_time))

    def run() -> None:
        try:
            highs.run()
        finally:
            done.set()

    def halt() -> None:
        stop.set()
        highs.setOptionValue("time_limit", 0.0)  # presolve asks for the time only

    limit = inf if time_limit is None else time_limit
    highs.setOptionValue("time_limit", inf)
    if limit <= 0:
        halt()
    highs.cbMipInterrupt += interrupt
    highs.cbSimplexInterrupt += interrupt
    highs.cbIpmInterrupt += interrupt
    highs.cbMipLogging += log
    Thread(target=run, daemon=True, name="highs").start()
    end, interrupted = monotonic() + limit, False
    while True:
        try:
            while not done.wait(0.05 if stop.is_set() else min(0.05, max(0.0, end - monotonic()))):
                while not news.empty():
                    progress(news.get())
                if cancelled():
                    end = min(end, monotonic())
                late = monotonic() - end
                if late >= 0:
                    halt()
                if late > grace:
                    raise _LateError(f"highs does not stop: its limit of {limit:g} s is long over")
            return stop.is_set(), interrupted
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            halt()


def _result(program: Program, highs: highspy.Highs, halted: bool, interrupted: bool) -> Result:
    """Halted in the midst, an answer that happens to be optimal is not the one that a whole search gives."""
    status, info = highs.getModelStatus(), highs.getInfo()
    statuses = highspy.HighsModelStatus
    if status == statuses.kInfeasible:
        return Result(Outcome.INFEASIBLE, None, inf, None, interrupted)
    if status == statuses.kModelEmpty:
        return Result(Outcome.OPTIMAL, program.offset, program.offset, np.zeros(0), interrupted)
    if halted and status == statuses.kUnknown:
        return Result(Outcome.UNKNOWN, None, -inf, None, interrupted)
    if status not in (statuses.kOptimal, statuses.kTimeLimit, statuses.kInterrupt):
        raise BackendError(f"highs gave up: {highs.modelStatusToString(status).lower()}")
    optimal = status == statuses.kOptimal
    mixed = bool(program.integer.any())
    bound = info.mip_dual_bound if mixed else info.objective_function_value if optimal else -inf
    bound = bound_below(program, bound)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Result(Outcome.UNKNOWN, None, bound, None, interrupted)
    x = np.array(highs.getSolution().col_value, np.float64)
    outcome = Outcome.OPTIMAL if optimal and not halted else Outcome.FEASIBLE
    return Result(outcome, info.objective_function_value, bound, x, interrupted)
