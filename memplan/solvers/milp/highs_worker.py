"""HiGHS at work on one program: functions that highs.py calls in worker processes, where alone HiGHS runs.

While HiGHS goes on, its progress and each better solution are reported as events.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import highspy
import numpy as np

from ...graphs.arrays import Floats
from ..workers.serve import Call
from .highs import Relaxation
from .model import Program
from .result import BackendError, MilpStatus, Progress, Result, Settings
from .write import lp_of


def _run(call: Call, highs: highspy.Highs, stopped: bool) -> None:
    """Run HiGHS to the end, or until the result is requested.

    stopped: it is requested at once.
    """

    def halt() -> None:
        call.stopped.set()
        highs.setOptionValue("time_limit", 0.0)  # presolve asks for the time only

    def interrupt(event: highspy.HighsCallbackEvent) -> None:
        if call.stopped.is_set() and event.data_in is not None:
            event.data_in.user_interrupt = True

    def log(event: highspy.HighsCallbackEvent) -> None:
        data = event.data_out
        if data.mip_primal_bound > data.mip_dual_bound:  # else: done, or a start is being completed
            call.report(Progress(data.mip_primal_bound, data.mip_dual_bound, data.running_time))

    def keep(event: highspy.HighsCallbackEvent) -> None:
        call.report(_values(event.data_out.mip_solution, highs.getNumCol()))

    highs.setOptionValue("time_limit", inf)
    if stopped:
        halt()
    highs.cbMipInterrupt += interrupt
    highs.cbSimplexInterrupt += interrupt
    highs.cbIpmInterrupt += interrupt
    highs.cbMipLogging += log
    highs.cbMipImprovingSolution += keep
    call.on_stop(halt)
    try:
        highs.run()
    finally:
        call.on_stop(None)


def _values(solution: Any, size: int) -> Floats:
    """Return the values of the columns. highspy before 1.11 gives a pointer to them."""
    return np.array(solution if isinstance(solution, np.ndarray) else solution.to_array(size), np.float64)


def solve(
    call: Call, program: Program, settings: Settings, start: Mapping[int, float], stopped: bool
) -> Result:
    """Solve a program. start: values of some columns. stopped: with what HiGHS finds at once."""
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
    _run(call, highs, stopped)
    return _result(program, highs, call.stopped.is_set())


def _result(program: Program, highs: highspy.Highs, halted: bool) -> Result:
    """Return what HiGHS has.

    An answer that happens to be optimal when HiGHS is halted is not the one that a whole search gives.
    """
    status, info = highs.getModelStatus(), highs.getInfo()
    statuses = highspy.HighsModelStatus
    nodes = None if info.mip_node_count < 0 else info.mip_node_count
    if status == statuses.kInfeasible:
        return Result(MilpStatus.INFEASIBLE, None, inf, None, nodes=nodes)
    if status == statuses.kModelEmpty:
        return Result(MilpStatus.OPTIMAL, program.offset, program.offset, np.zeros(0), nodes=nodes)
    if halted and status == statuses.kUnknown:
        return Result(MilpStatus.UNKNOWN, None, -inf, None, nodes=nodes)
    if status not in (statuses.kOptimal, statuses.kTimeLimit, statuses.kInterrupt):
        raise BackendError(f"highs gave up: {highs.modelStatusToString(status).lower()}")
    optimal = status == statuses.kOptimal
    mixed = bool(program.integer.any())
    bound = info.mip_dual_bound if mixed else info.objective_function_value if optimal else -inf
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Result(MilpStatus.UNKNOWN, None, bound, None, nodes=nodes)
    x = np.array(highs.getSolution().col_value, np.float64)
    found = MilpStatus.OPTIMAL if optimal and not halted else MilpStatus.FEASIBLE
    return Result(found, info.objective_function_value, bound, x, nodes=nodes)


def relax(call: Call, program: Program, presolve: bool, stopped: bool) -> Relaxation:
    """Solve a program in fractions, as highs.relax says."""
    highs = highspy.Highs()
    options: dict[str, bool | str] = {"output_flag": False, "solver": "ipm", "run_crossover": "off"}
    options["presolve"] = "choose" if presolve else "off"
    for name, value in options.items():
        highs.setOptionValue(name, value)
    if highs.passModel(lp_of(program, whole=False)) == highspy.HighsStatus.kError:
        raise BackendError(f"highs does not accept the model of {program.size}")
    _run(call, highs, stopped)
    ray = None
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        highs.setOptionValue("solver", "simplex")
        highs.setOptionValue("presolve", "off")
        _run(call, highs, stopped)
        _status, found, values = highs.getDualRay()  # pyright: ignore[reportAttributeAccessIssue]
        ray = np.array(values, np.float64) if found else None
    solution = highs.getSolution()
    return Relaxation(
        np.array(solution.col_value, np.float64) if solution.value_valid else None,
        np.array(solution.row_dual, np.float64) if solution.dual_valid else None,
        ray,
    )
