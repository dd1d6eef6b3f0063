"""Searches of Moccasin's programs, in a worker process (worker.py).

    with Searcher(graph) as searcher:
        found = searcher.search(Question(capacity, copies, start, least=False, limits=Limits(10.0)))

A worker takes a second to start; it answers any number of questions, and Ctrl-C keeps the best so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from time import monotonic
from types import TracebackType

from ....graphs.graph import Graph
from ....planner.schedule.sequence import Run
from ...milp.result import BackendError, MilpStatus
from ...workers.worker import Pool, WorkerCrashedError, WorkerFaultError

WORKER = "memplan.solvers.recomputation.moccasin.worker:search"


@dataclass(frozen=True)
class Limits:
    """Limits of a search.

    seconds: None for no limit. threads: CP-SAT's workers, 0 for one a core. enough: the search may stop at
    an objective, in the program's units, as small as this.
    """

    seconds: float | None = None
    threads: int = 0
    seed: int = 0
    enough: int | None = None


@dataclass(frozen=True)
class Question:
    """A search. capacity, copies: as in `Timeline`. start: a sequence to start from; empty: none.
    least: minimise what exceeds the capacity instead."""

    capacity: int
    copies: int
    start: Sequence[Run]
    least: bool
    limits: Limits


@dataclass(frozen=True)
class MoccasinResult:
    """The best so far of a search.

    runs: the best sequence, None if none is known.
    objective: its seconds, or units of the excess.
    bound: no solution is below it.
    seconds: of searching.
    """

    status: MilpStatus
    runs: list[Run] | None
    objective: float
    bound: float
    seconds: float

    @staticmethod
    def nothing() -> MoccasinResult:
        """Return a result with nothing found, and nothing proven."""
        return MoccasinResult(MilpStatus.UNKNOWN, None, inf, -inf, 0.0)


class Searcher(AbstractContextManager["Searcher"]):
    """Searches for one graph, one at a time. interrupted: Ctrl-C ended the last one."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.interrupted = graph, False
        self._workers = Pool("moccasin")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.close()

    def search(
        self, question: Question, progress: Callable[[MoccasinResult], None] = lambda _found: None
    ) -> MoccasinResult:
        """Search; the best found. progress: called with every new best. The first Ctrl-C ends the search."""
        best, seconds = MoccasinResult.nothing(), question.limits.seconds

        def take(found: MoccasinResult) -> None:
            nonlocal best
            best = found
            progress(found)

        end = inf if seconds is None else monotonic() + seconds
        try:
            ending = self._workers.call(WORKER, self.graph, question, end=end, event=take)
        except (WorkerCrashedError, WorkerFaultError) as error:
            raise BackendError(f"CP-SAT crashed: {error}") from None
        self.interrupted = ending.interrupted
        # Ended from outside: the last report stands.
        return ending.value if ending.answered else best
