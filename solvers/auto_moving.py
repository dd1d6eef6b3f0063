"""The portfolio on a machine with links: others first, then the joint search from the fastest of them.

    first half    search (no transfers), joint from its own starts, and the published systems, on all cores
    second half   joint from the fastest schedule of the first

So the answer is never slower than any of theirs within the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from threading import Event
from time import monotonic

from ..graphs.machine import Machine
from ..planner.bounds import memory_floor
from ..planner.schedule import Schedule
from . import joint, search
from .chains import device_limit
from .problem import Answer, InfeasibleError, NotAcceptedError, NotFoundError, Options, Problem

PUBLISHED = ("weight_offload", "offmate", "lohan", "pofo", "zero_offload", "zero_infinity")
"""Modules of solvers that move data, those first that find most."""

_FIRST = 0.5
_SLOW = 4
"""So many of the first half's lines use all the time they are given."""

_SECONDS = 20.0
"""Of a solver in the first half where there is no time limit."""


def solve(problem: Problem, options: Options, name: str, workers: int) -> Answer:
    """name: whose refusals these are. Raises NotFoundError or InfeasibleError where no line finds any."""
    plain = joint.plain_if_fastest(problem)
    if plain is not None:
        return plain
    begin, stop = monotonic(), Event()
    options = replace(options, cancelled=stop.is_set)
    total = options.time_limit
    lines = _lines(problem)
    share = min(1.0, workers / min(len(lines), _SLOW)) * _FIRST
    each = replace(options, time_limit=_SECONDS if total is None else share * total, settings=None)
    schedules, refusals = _outcomes([partial(line, problem, each) for line in lines], workers, stop)
    if not schedules:
        if stop.is_set():
            raise KeyboardInterrupt
        raise _refusal(problem, name, refusals)
    left = None if total is None else max(0.0, total - (monotonic() - begin))
    answer = joint.improved(problem, replace(options, time_limit=left, settings=None), schedules)
    return replace(answer, interrupted=answer.interrupted or stop.is_set())


def _lines(problem: Problem) -> list[Callable[[Problem, Options], Answer]]:
    lines = [joint.solve]
    if memory_floor(problem.graph, Machine()) <= device_limit(problem):
        lines.append(search.solve)
    return lines + [import_module(f".{module}", __package__).solve for module in PUBLISHED]


def _outcomes(
    lines: list[Callable[[], Answer]], workers: int, stop: Event
) -> tuple[list[Schedule], list[InfeasibleError]]:
    """Schedules and refusals. Ctrl-C sets `stop`: each line then gives its best so far, or ends."""
    schedules: list[Schedule] = []
    refusals: list[InfeasibleError] = []
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(line) for line in lines]
        try:
            while wait(running, timeout=0.2).not_done:
                pass  # a signal is only seen between waits
        except KeyboardInterrupt:
            stop.set()
            for line in running:
                line.cancel()
        for line in running:
            if line.cancelled():
                continue
            with suppress(NotAcceptedError):
                try:
                    schedules.append(line.result().schedule)
                except InfeasibleError as refusal:
                    refusals.append(refusal)
    return schedules, refusals


def _refusal(problem: Problem, name: str, refusals: list[InfeasibleError]) -> InfeasibleError:
    """The one that names the smallest budget; not found where somebody did not finish."""
    floor, limit = memory_floor(problem.graph, problem.machine), device_limit(problem)
    least = min((refusal.least for refusal in refusals if refusal.least is not None), default=None)
    if least is None or least <= limit:
        return NotFoundError(name, limit, floor)
    return InfeasibleError(name, limit, least, floor)
