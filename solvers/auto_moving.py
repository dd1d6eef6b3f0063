"""The portfolio on a machine with links: others first, then the joint search from the fastest of them.

    first    joint from its own starts beside offmate, then the others, on the cores at hand
    then     joint from the fastest schedule of these, in the time that is left

So the answer is never slower than any of theirs within the same time.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from threading import Event
from time import monotonic

from joblib import Parallel, delayed

from ..graphs.machine import Machine
from ..planner.bounds import memory_floor
from ..planner.schedule import Schedule
from . import joint
from .chains import device_limit
from .child import end_with
from .problem import Answer, InfeasibleError, NotAcceptedError, NotFoundError, Options, Problem

LINES = {
    "joint": 0.7,
    "offmate": 0.4,
    "weight_offload": 0.15,
    "search": 0.1,
    "lohan": 0.05,
    "pofo": 0.05,
    "zero_offload": 0.05,
    "zero_infinity": 0.05,
}
"""Modules of solvers, and the share of all time that each may take with two cores and more."""

_SECONDS = 100.0
"""What the shares are of where there is no time limit."""

_PROCESSES = 500
"""From so many operations on the lines are processes: threads would wait for each other's Python."""


@dataclass(frozen=True)
class _Refused:
    """least: the smallest budget that the solver can reach, None where it can't tell."""

    least: int | None


_Outcome = Schedule | _Refused | None


def solve(problem: Problem, options: Options, name: str, workers: int) -> Answer:
    """name: whose refusals these are. Raises NotFoundError or InfeasibleError where no line finds any."""
    plain = joint.plain_if_fastest(problem)
    if plain is not None:
        return plain
    begin, stop = monotonic(), Event()
    total = options.time_limit
    unit = (_SECONDS if total is None else total) * min(1.0, workers / 2)
    lines = [
        partial(_run, module, problem, share * unit)
        for module, share in LINES.items()
        if module != "search" or memory_floor(problem.graph, Machine()) <= device_limit(problem)
    ]
    many = len(problem.graph.operations) >= _PROCESSES and workers > 1
    outcomes = (_in_processes if many else _in_threads)(lines, workers, stop)
    schedules = [outcome for outcome in outcomes if isinstance(outcome, Schedule)]
    if not schedules:
        if stop.is_set():
            raise KeyboardInterrupt
        raise _refusal(problem, name, [o for o in outcomes if isinstance(o, _Refused)])
    left = None if total is None else max(0.0, total - (monotonic() - begin))
    rest = replace(options, time_limit=left, settings=None, cancelled=stop.is_set)
    answer = joint.improved(problem, rest, schedules)
    return replace(answer, interrupted=answer.interrupted or stop.is_set())


def _run(
    module: str, problem: Problem, seconds: float, cancelled: Callable[[], bool] = lambda: False
) -> _Outcome:
    """What a solver finds; None where the graph is none of its."""
    try:
        options = Options(seconds, cancelled=cancelled)
        return import_module(f".{module}", __package__).solve(problem, options).schedule
    except InfeasibleError as refusal:
        return _Refused(refusal.least)
    except NotAcceptedError:
        return None


def _in_processes(lines: Sequence[Callable[[], _Outcome]], workers: int, stop: Event) -> list[_Outcome]:
    """Ctrl-C sets `stop` and ends them; what has been found by then counts."""
    found: list[_Outcome] = []
    try:
        tasks = (delayed(_ending_with)(os.getpid(), line) for line in lines)
        running = Parallel(n_jobs=workers, return_as="generator_unordered")(tasks)
        found.extend(running)
    except KeyboardInterrupt:
        stop.set()
    return found


def _ending_with(parent: int, line: Callable[[], _Outcome]) -> _Outcome:
    end_with(parent)
    return line()


def _in_threads(lines: Sequence[Callable[..., _Outcome]], workers: int, stop: Event) -> list[_Outcome]:
    """Ctrl-C sets `stop`: each line then gives its best so far, or ends."""
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(line, cancelled=stop.is_set) for line in lines]
        try:
            while wait(running, timeout=0.2).not_done:
                pass  # a signal is only seen between waits
        except KeyboardInterrupt:
            stop.set()
            for line in running:
                line.cancel()
        return [line.result() for line in running if not line.cancelled()]


def _refusal(problem: Problem, name: str, refusals: Sequence[_Refused]) -> InfeasibleError:
    """The one that names the smallest budget; not found where somebody did not finish."""
    floor, limit = memory_floor(problem.graph, problem.machine), device_limit(problem)
    least = min((refusal.least for refusal in refusals if refusal.least is not None), default=None)
    if least is None or least <= limit:
        return NotFoundError(name, limit, floor)
    return InfeasibleError(name, limit, least, floor)
