"""Rk-Checkmate on a whole graph: the fastest schedule in the file's order within M_peak and M_save.

The program, and how it differs from the paper's, stand in rk_checkmate_model.py; rockmate solves it for each
block. With M_save at M_peak its optimum is that of `checkmate`, whose program makes no difference between
forward and backward; so its claims are the same: `optimal` among the schedules in stages.

M_peak is the budget without what is there from the start. M_save is `save` times as much: what is there
while the loss runs, besides what the loss writes. Backends round: should the replayed bytes be above a limit,
the program is solved again with the excess cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from ..graphs.errors import InputError
from ..graphs.graph import Graph, Phase
from ..graphs.machine import Machine
from ..planner.bounds import memory_floor, time_bound
from ..planner.schedule import Verb
from ..planner.sequence import Run, schedule_of
from . import milp, rotor
from .candidates import Candidate, device_limit, judged, plain_candidate
from .checkmate import EVICTION_SECONDS, MOST_ENTRIES, PROVEN, ROUNDS
from .checkmate_model import TooLargeError
from .eviction import sequences
from .milp_result import Outcome, Result
from .milp_result import Settings as MilpSettings
from .problem import Answer, InfeasibleError, NotAcceptedError, NotFoundError, Options, Problem, Status
from .rk_checkmate_model import rk_checkmate_program
from .scan import scan
from .stages import ways_of

NAME = "rk-checkmate"


@dataclass(frozen=True)
class Settings(MilpSettings):
    """save: M_save as a share of M_peak, from 0 to 1 (no limit of its own)."""

    save: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.save <= 1:
            raise InputError(f"save must be from 0 to 1, not {self.save:g}")


def solve(problem: Problem, options: Options) -> Answer:
    """Ctrl-C during the search ends it: the answer is the best so far."""
    search = _Search(problem, options)
    if search.limit < memory_floor(problem.graph, Machine()):
        raise search.infeasible()
    found: list[Candidate] = []
    bound, interrupted = 0.0, False
    with suppress(KeyboardInterrupt):
        interrupted = True
        for candidate in search.starts():
            found += [candidate] if search.fits(candidate) else []
        if found and search.is_plain(found[0]):
            return Answer(found[0].schedule, Status.OPTIMAL, time_bound(problem.graph))
        interrupted = False
    if not interrupted:
        try:
            more, bound, interrupted = search.by_program(_fastest(found))
        except TooLargeError:
            if not found:
                raise NotAcceptedError(f"{NAME}'s program for {problem.graph.name} is too large") from None
        else:
            found += more
    best = _fastest(found)
    if best is None:
        if interrupted:
            raise KeyboardInterrupt
        if bound == inf:
            raise search.infeasible()
        raise NotFoundError(NAME, search.limit, memory_floor(problem.graph, problem.machine))
    proven = best.time <= bound + PROVEN * best.time
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    return Answer(best.schedule, status, time_bound(problem.graph), interrupted)


def saved_bytes(graph: Graph, runs: Sequence[Run], loss: int) -> int:
    """What is there while the loss runs, besides what it writes and what is there from the start."""
    at = next(position for position, (operation, _mode) in enumerate(runs) if operation == loss)
    resident = frozenset(graph.resident.nonzero()[0].tolist())
    results = {x: graph.whole_contributions[x] for x in graph.results}
    operations = frozenset(range(len(graph.operations)))
    needed = scan(graph, runs[at:], results, resident, operations).needed
    return sum(graph.tensors.bytes.item(x) for x in needed)


class _Search:
    """limit: device bytes. peak, saved: M_peak; M_save, None where it is no limit."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options, self.graph = problem, options, problem.graph
        self.settings: Settings = options.settings or Settings()
        self.deadline = inf if options.time_limit is None else monotonic() + options.time_limit
        self.limit = device_limit(problem)
        self.always = int(self.graph.tensors.bytes[self.graph.resident].sum())
        self.peak = self.limit - self.always
        losses = (self.graph.operations.phase == Phase.LOSS).nonzero()[0].tolist()
        if self.settings.save < 1 and not losses:
            raise InputError(f"save limits what is kept at the loss; {self.graph.name} has no loss")
        self.loss: int = losses[0] if losses else -1
        self.saved = int(self.settings.save * self.peak) if self.settings.save < 1 else None
        self.plain = plain_candidate(self.graph)

    def fits(self, candidate: Candidate) -> bool:
        if self.saved is not None and saved_bytes(self.graph, _runs(candidate), self.loss) > self.saved:
            return False
        return candidate.peak <= self.limit

    def is_plain(self, candidate: Candidate) -> bool:
        """Nothing can be faster: it is the plain schedule, and no mode is faster than the plain one."""
        times = self.graph.operations.time
        faster = (w.time < times[k] for k in self.graph.operations.modes for w in ways_of(self.graph, k))
        return candidate is self.plain and not any(faster)

    def starts(self) -> Iterator[Candidate]:
        """The plain schedule first."""
        yield self.plain
        if self.plain.peak <= self.limit and self.saved is None:
            return
        with suppress(NotAcceptedError, InfeasibleError):
            answer = rotor.solve(self.problem, Options(self._left()))
            yield judged(self.graph, answer.schedule)
            if answer.interrupted:
                raise KeyboardInterrupt
        left = self._left()
        end = monotonic() + (EVICTION_SECONDS if left is None else min(EVICTION_SECONDS, left / 10))
        for runs in sequences(self.graph, self.limit, lambda: monotonic() < end):
            yield judged(self.graph, schedule_of(self.graph, runs))

    def by_program(self, start: Candidate | None) -> tuple[list[Candidate], float, bool]:
        """What the program gives, at most one; its bound, ∞ where there is nothing; whether interrupted."""
        peak, saved, bound = self.peak, self.saved, None
        for attempt in range(ROUNDS):
            result, seconds, runs = self._solved(peak, saved, start)
            bound = result.bound * seconds if bound is None else bound
            if result.x is None:
                return [], bound, result.interrupted
            found = judged(self.graph, schedule_of(self.graph, runs))
            if self.fits(found):
                return [found], bound, result.interrupted
            peak -= max(0, found.peak - self.limit) << attempt
            if saved is not None:
                saved -= max(0, saved_bytes(self.graph, _runs(found), self.loss) - saved) << attempt
        return [], bound or 0.0, False

    def _solved(
        self, peak: int, saved: int | None, start: Candidate | None, *, least: bool = False
    ) -> tuple[Result, float, list[Run]]:
        """The result, what 1 of its objective is in seconds, the sequence that it means."""
        staged = rk_checkmate_program(self.graph, peak, saved, least=least, most_entries=MOST_ENTRIES)
        result = milp.solve(
            staged.program,
            replace(self.settings, gap=0.0) if least else self.settings,
            time_limit=self._left(),
            start=staged.runs.values(_runs(start)) if start else None,
        )
        runs = [] if result.x is None else staged.runs.sequence(result.x)
        return result, staged.seconds, runs

    def infeasible(self) -> InfeasibleError:
        """With the least peak, where M_save is no limit and the time left is enough to prove it."""
        least = None
        if self.saved is None:
            self.options.report("no schedule within the budget; looking for the smallest that is enough")
            with suppress(TooLargeError):
                enough = self.plain.peak - self.always
                result, _seconds, runs = self._solved(enough, None, self.plain, least=True)
                if result.outcome == Outcome.OPTIMAL:
                    least = judged(self.graph, schedule_of(self.graph, runs)).peak
        return InfeasibleError(NAME, self.limit, least, memory_floor(self.graph, self.problem.machine))

    def _left(self) -> float | None:
        return None if self.deadline == inf else max(0.0, self.deadline - monotonic())


def _runs(candidate: Candidate) -> list[Run]:
    return [(step.target, step.where) for step in candidate.schedule if step.verb == Verb.COMPUTE]


def _fastest(candidates: Sequence[Candidate]) -> Candidate | None:
    return min(candidates, key=lambda candidate: candidate.time, default=None)
