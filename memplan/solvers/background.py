"""Solve a problem in the background of a program, in a worker process of the lowest priority.

The thread that waits for it sleeps; the program asks now and then whether there is an answer. The process
ends when nobody holds this any more, and when the program comes to its end, which waits for that: the thread
is joined before the interpreter is finalized, so nothing of this outlives the program.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from threading import Event, main_thread

from ..graphs.undisturbed import start_thread
from ..planner.schedule.schedule import Schedule
from .allowed import restrict
from .auto.workers import SolverWorkers
from .problem import Problem

LOWEST = 19
"""The lowest priority, as `nice` counts them."""


class Background:
    """A solve in the background.

    schedule: the result, within the time limit; None until then.
    fault: why there is none.
    ended: set once there is one of the two.
    """

    def __init__(
        self, solver: str, problem: Problem, seconds: float, settings: Mapping[str, str] | None = None
    ) -> None:
        """Start solving in a worker process.

        solver: the solver's name.
        seconds: the time limit.
        settings: the solver's settings, as text.
        """
        self.schedule: Schedule | None = None
        self.fault: str | None = None
        self.ended, cancelled = Event(), Event()
        # A weak reference: the thread must not keep alive the object whose end is to stop it.
        work = partial(
            _solve, weakref.ref(self), self.ended, cancelled, solver, problem, seconds, settings or {}
        )
        # A daemon thread could be cut off while the process it started goes on.
        start_thread(work, name="memplan background", daemon=False)
        # `cancelled.set`, not a method of self, which would never be collected.
        weakref.finalize(self, cancelled.set)


class _UnwantedError(Exception):
    """Nobody wants the answer any more: the process is ended at once."""


def _solve(
    result: weakref.ref[Background],
    ended: Event,
    cancelled: Event,
    solver: str,
    problem: Problem,
    seconds: float,
    settings: Mapping[str, str],
) -> None:
    def end_if_unwanted() -> bool:
        """End the process if no answer is wanted any more. Returns False: the best so far is never wanted."""
        if cancelled.is_set() or not main_thread().is_alive():
            raise _UnwantedError
        return False

    found, fault = None, None
    try:
        restriction = restrict(problem)
        with SolverWorkers(restriction.problem, LOWEST) as workers:
            answer = workers.solve(solver, settings, seconds, end_if_unwanted)
        found = restriction.original(answer.schedule)
    except _UnwantedError:
        fault = "it was ended"
    except Exception as error:
        fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if (given := result()) is not None:
        given.schedule, given.fault = found, fault
    # Last: who waits for it reads the answer at once.
    ended.set()
