"""Checkmate: the fastest schedule within the budget that keeps the file's order, by integer programming.

First runs keep the file's order, and between two of them any operation may run again, once and in order: no
such schedule is faster. The program and its references are in checkmate_model.py. Another order of first
runs may be faster, so the program's own bound is only reported, and the answer's lower bound is the general
one. Time: exponential in the worst case; with HiGHS, chains of 60 operations take seconds, other graphs of
100 half a minute (benchmarks/checkmate_speed.py).

Bytes are exact with HiGHS and Gurobi. Other backends keep constraints to about 1e-9 of the capacity, so an
answer may come out above a large budget by some bytes: the simulator sees it, and the program is solved
again with the excess cut off.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.bounds import memory_floor, time_bound
from ..planner.schedule import Verb
from ..planner.sequence import Run, schedule_of
from . import chen_sqrt, milp, rotor
from .candidates import Candidate, device_limit, judged, plain_candidate
from .checkmate_model import StagedProgram, TooLargeError, staged_program
from .eviction import sequences
from .milp_result import BackendError, Outcome, Progress, Result, Settings
from .problem import Answer, InfeasibleError, NotAcceptedError, NotFoundError, Options, Problem, Status
from .stages import ways_of

__all__ = ["NAME", "NotFoundError", "Settings", "solve"]

NAME = "checkmate"

PROVEN = 1e-6
"""The relative gap at which an answer counts as optimal."""

DOUBTFUL = 1e-4
"""A bound this much above the time of a schedule, relatively, is wrong."""

EVICTION_SECONDS = 10.0
"""The most that is spent on greedy eviction."""

ROUNDS = 5
"""How often an answer above the budget is answered by a smaller capacity."""

MOST_ENTRIES = 30_000_000
"""Nonzeros of the largest program that is tried: some 500 operations, where HiGHS needs long to begin."""


@dataclass(frozen=True)
class _Found:
    """What the program gave. bound: seconds; no schedule of this form within the limit is faster."""

    candidate: Candidate | None
    bound: float
    interrupted: bool = False


def solve(problem: Problem, options: Options) -> Answer:
    """Ctrl-C during the search ends it: the answer is the best so far."""
    graph, limit = problem.graph, device_limit(problem)
    deadline = None if options.time_limit is None else monotonic() + options.time_limit
    plain = plain_candidate(graph)
    if plain.peak <= limit and not _has_faster_ways(graph):
        return Answer(plain.schedule, Status.OPTIMAL, time_bound(graph))
    if limit < memory_floor(graph, Machine()):
        raise _infeasible(problem, options, deadline, plain)
    start = _start(problem, deadline, plain)
    try:
        found = start if start.interrupted else _by_program(graph, limit, options, deadline, start.candidate)
    except TooLargeError:
        if start.candidate is None:
            raise NotAcceptedError(
                f"checkmate's program for the {len(graph.operations):,} operations of {graph.name} "
                f"has more than {MOST_ENTRIES:,} entries: too large to solve"
            ) from None
        found = start
    best = _fastest([candidate for candidate in (found.candidate, start.candidate) if candidate])
    if best is None:
        if found.interrupted:
            raise KeyboardInterrupt
        if found.bound == inf:
            raise _infeasible(problem, options, deadline, plain)
        raise NotFoundError(NAME, limit, memory_floor(graph, problem.machine))
    options.report(f"{best.time:.6g} s; no schedule in the file's order is faster than {found.bound:.6g} s")
    proven = best.time <= found.bound + PROVEN * best.time
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    return Answer(best.schedule, status, time_bound(graph), found.interrupted)


def _start(problem: Problem, deadline: float | None, plain: Candidate) -> _Found:
    """The best of the plain schedule, greedy eviction and, for a chain, what the solvers for those find."""
    graph, limit = problem.graph, device_limit(problem)
    found = [plain] if plain.peak <= limit else []
    for solver in (chen_sqrt.solve, rotor.solve):
        with suppress(NotAcceptedError, InfeasibleError):
            answer = solver(problem, Options(_left(deadline)))
            found.append(judged(graph, answer.schedule))
            if answer.interrupted:
                return _Found(_fastest(found), 0.0, interrupted=True)
    left = _left(deadline)
    end = monotonic() + (EVICTION_SECONDS if left is None else min(EVICTION_SECONDS, left / 10))
    for runs in sequences(graph, limit, lambda: monotonic() < end):
        candidate = judged(graph, schedule_of(graph, runs))
        found += [candidate] if candidate.peak <= limit else []
    return _Found(_fastest(found), 0.0)


def _by_program(
    graph: Graph, limit: int, options: Options, deadline: float | None, start: Candidate | None
) -> _Found:
    capacity, bound = limit - _always(graph), None
    for attempt in range(ROUNDS):
        staged = staged_program(graph, capacity, most_entries=MOST_ENTRIES)
        result = _search(staged, options, deadline, start)
        if bound is None:
            bound = result.bound * staged.seconds
            _doubt(bound, start, options)
        if result.x is None:
            return _Found(None, bound, result.interrupted)
        found = judged(graph, schedule_of(graph, staged.runs.sequence(result.x)))
        if found.peak <= limit:
            return _Found(found, bound, result.interrupted)
        capacity -= (found.peak - limit) << attempt
    return _Found(None, bound or 0.0)


def _doubt(bound: float, start: Candidate | None, options: Options) -> None:
    """Raises BackendError where the start is faster than the backend says that any schedule is."""
    if start is None or bound <= start.time * (1 + DOUBTFUL):
        return
    first_runs = list(dict.fromkeys(operation for operation, _mode in _sequence(start)))
    if first_runs == sorted(first_runs):
        backend = (options.settings or Settings()).backend
        claim = "there is no schedule" if bound == inf else f"no schedule is faster than {bound:.6g} s"
        raise BackendError(f"{backend} is wrong: it says that {claim}, and one takes {start.time:.6g} s")


def _search(
    staged: StagedProgram, options: Options, deadline: float | None, start: Candidate | None
) -> Result:
    def tell(progress: Progress) -> None:
        options.report(progress.line(staged.seconds))

    return milp.solve(
        staged.program,
        options.settings,
        time_limit=_left(deadline),
        start=staged.runs.values(_sequence(start)) if start else None,
        progress=tell,
    )


def _infeasible(
    problem: Problem, options: Options, deadline: float | None, plain: Candidate
) -> InfeasibleError:
    """With the least peak of any schedule of this form, where the time left is enough to prove it."""
    graph, least = problem.graph, None
    options.report("no schedule within the budget; looking for the smallest that is enough")
    with suppress(TooLargeError):
        staged = staged_program(graph, plain.peak - _always(graph), least=True, most_entries=MOST_ENTRIES)
        result = milp.solve(
            staged.program,
            replace(options.settings or Settings(), gap=0.0),
            time_limit=_left(deadline),
            start=staged.runs.values(_sequence(plain)),
        )
        if result.outcome == Outcome.INFEASIBLE:
            _doubt(inf, plain, options)
        if result.outcome == Outcome.OPTIMAL and result.x is not None:
            least = judged(graph, schedule_of(graph, staged.runs.sequence(result.x))).peak
    return InfeasibleError(NAME, device_limit(problem), least, memory_floor(graph, problem.machine))


def _fastest(candidates: list[Candidate]) -> Candidate | None:
    return min(candidates, key=lambda candidate: candidate.time, default=None)


def _sequence(candidate: Candidate) -> list[Run]:
    return [(step.target, step.where) for step in candidate.schedule if step.verb == Verb.COMPUTE]


def _always(graph: Graph) -> int:
    """Bytes that stay on the device: the batch and the persistent tensors."""
    return int(graph.tensors.bytes[graph.resident].sum())


def _has_faster_ways(graph: Graph) -> bool:
    return any(
        way.time < graph.operations.time[operation]
        for operation in graph.operations.modes
        for way in ways_of(graph, operation)
    )


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - monotonic())
