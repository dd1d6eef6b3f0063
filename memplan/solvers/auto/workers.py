"""Worker processes that solve one problem, member after member, for portfolios on large graphs.

Threads would wait for each other's Python there. A worker takes a second or two to start, which its first
member's seconds pay, so each is reused; one that dies costs the member that it ran. Ctrl-C reaches this
process alone and is passed on, so that the solver in the worker ends with its best so far.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic, time
from types import TracebackType

from ...graphs.folders.scratch import Scratch
from ..incumbent import Incumbent
from ..problem import Problem, SolverResult
from ..workers import process
from ..workers.worker import Pool, WorkerCrashedError, WorkerFaultError
from .members import Cancelled

WORKER = "memplan.solvers.auto.worker:solve"

GRACE_SECONDS = 300.0
"""Seconds after its time limit, and as much once more, before a member counts as hung.

Code that is compiled at its first use takes a minute on a busy machine.
"""


class ProcessFaultError(Exception):
    """An error that a member raised in its process, or how that process ended."""


class SolverWorkers(AbstractContextManager["SolverWorkers"]):
    """The workers of one problem, as many as members run at once."""

    def __init__(
        self, problem: Problem, niceness: int = 0, race: Incumbent | None = None, *, by_default: bool = False
    ) -> None:
        """Prepare worker processes for one problem.

        niceness: by which the processes yield to others.
        race: gets schedules' seconds as the solvers find them.
        by_default: nobody has asked for the solvers' seconds.
        """
        self._folder, self._race, self._by_default = Scratch("problem"), race or Incumbent(), by_default
        self.pool = Pool("solver", niceness)
        self._problem = Path(self._folder.name, "problem")
        machine = problem.machine or problem.graph.machine
        # a new graph leaves out what this process has derived from it; a file is written once for all workers
        graph = replace(problem.graph, machine=machine)
        with self._problem.open("wb") as file:
            pickle.dump(Problem(graph, problem.budget), file, pickle.HIGHEST_PROTOCOL)

    def solve(
        self, solver: str, settings: Mapping[str, str], seconds: float, cancelled: Cancelled
    ) -> SolverResult:
        """Solve with the solver of this name; its refusals are raised. settings: as text. Raises
        ProcessFaultError."""
        best = inf

        def found(time_found: float) -> None:
            nonlocal best
            best = time_found
            self._race.found(time_found, who=solver)

        def grace() -> float:
            leads = best < inf and best <= self._race.best
            return process.KEEP_SECONDS if leads else process.LAST_SECONDS

        try:
            ending = self.pool.call(
                WORKER,
                *(str(self._problem), solver, dict(settings), time() + seconds, self._by_default),
                end=monotonic() + 2.0 * seconds + GRACE_SECONDS,
                cancelled=cancelled,
                event=found,
                grace=grace,
            )
        except WorkerCrashedError as crash:
            if cancelled():
                raise KeyboardInterrupt from None
            raise ProcessFaultError(f"its process died: {crash}") from None
        except WorkerFaultError as fault:
            raise ProcessFaultError(str(fault)) from None
        if ending.answered:
            return ending.value
        if ending.cancelled:
            raise KeyboardInterrupt
        raise ProcessFaultError(f"it does not stop: its limit of {seconds:g} s is long over")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.close()
        self._folder.cleanup()
