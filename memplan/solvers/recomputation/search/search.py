"""Search: annealing over sequences of runs in any order, with exact memory at every step.

Minimises the seconds of all runs, or of their launches if these take longer, within the device's bytes.
Assumes no chain, no order and no number of runs; only the schedule's rules hold (rules.py). The objective,
with its price for bytes above the budget, is in anneal.py.

    graph ──instance──▶ records ──sequence──▶ runs in slots ──events──▶ a tree of memory
                                      ▲
                anneal: keep or undo ──▶ rematerialize, moves: one run more, less, elsewhere

In the order to read:

    instance.py                 the graph as flat arrays
    sequence.py, events.py      runs in slots; when a tensor is resident, and what follows from that
    tree.py                     memory over the slots
    rules.py                    where a run may stand, which may go
    rematerialize.py, moves.py  the moves
    anneal.py, rounds.py        one annealing; several, from hot to cool
    search.py                   starts, restarts, the least memory

A move costs O(degree · log slots): some ten thousand a second. The peak at every step is the simulator's,
to the byte, so the answer needs no margin. It is never above the starts it is given.

Rounds: one from the traced order, hot enough to reorder it, with `replicas` by several that exchange
temperatures (rounds.py); then cooler ones from the best so far. If the budget is not met, the sequences of
least memory that others find are tried as starts. With a time limit, all is repeated with other random
numbers while that helps; without, the same problem, settings and seed give the same answer. Nothing is proven
here: the gap is to the bounds in bounds/residency/residency.py.

Developed for memplan, after FastSA (Imanishi et al., NeurIPS 2023). New are: memory counted per tensor, with
workspace, several outputs, summed gradients, changes in place and random operations; a dropped tensor is
recomputed together with what that needs (one move); a move that breaks the budget is repaired at the peak
before it is accepted or undone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....planner.bounds import minimum_memory, time_bound
from ....planner.schedule.sequence import Run, in_default_mode, runs_of
from ...candidates import baseline_candidate, device_limit, fastest_baseline
from ...incumbent import Incumbent
from ...problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Options,
    Problem,
    SolverResult,
    Status,
)
from ...settings import SolverSettings, seed_setting, setting
from ...stages import eviction
from ..checkpointing import rotor
from .rounds import NAME, Rounds

_EVICTION_OPERATIONS = 1500
"""Most operations for which greedy eviction, cubic at worst, gives a start."""

_ROTOR_SECONDS = 10.0
"""The most that rotor may take for such a start."""

_PATIENCE = 3
"""Restarts without success that end the search before its time."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of search."""

    moves: int = setting(
        1500, "moves tried for each operation of the graph; 3,000,000 in all at most", least=1
    )
    seed: int = seed_setting()
    replicas: int = setting(
        1, "sequences that the first round anneals side by side, sharing its moves", least=1, most=64
    )


def solve(problem: Problem, options: Options) -> SolverResult:
    graph = problem.graph
    baseline = baseline_candidate(graph)
    if (fastest := fastest_baseline(problem, baseline)) is not None:
        return fastest
    try:
        start = options.start
        traced = in_default_mode(range(len(graph.operations)))
        return improved(problem, options, traced if start is None else runs_of(start))
    except InfeasibleError:  # no time was left to find as much
        if baseline.peak > device_limit(problem):
            raise
        return SolverResult(baseline.schedule, Status.FEASIBLE, time_bound(graph))


def improved(problem: Problem, options: Options, start: list[Run]) -> SolverResult:
    """Return the best of what annealing makes of the start; if that leads nowhere, of what else is known."""
    settings = options.chosen(Settings)
    rounds = Rounds(
        graph=problem.graph,
        limit=device_limit(problem),
        moves=settings.moves,
        number=settings.seed,
        options=options,
        replicas=settings.replicas,
    )
    with rounds.clock.until_interrupted():
        _anneal(problem, options, settings, rounds, start)
    if not rounds.fits:
        rounds.clock.raise_if_interrupted()
    answer = SolverResult.of_heuristic(rounds.schedule(), rounds.clock, time_bound(problem.graph))
    return replace(answer, status=Status.FEASIBLE) if rounds.cut_short else answer


def _anneal(problem: Problem, options: Options, settings: Settings, rounds: Rounds, start: list[Run]) -> None:
    if rounds.limit >= minimum_memory(problem.graph, problem.machine):
        rounds.anneal(start)
        if options.time_limit is not None and rounds.fits:
            _restart(rounds, start)
        for runs in () if rounds.fits or not rounds.proceed() else _starts_within_budget(problem, rounds):
            if not rounds.fits and rounds.proceed():
                rounds.anneal(runs)
    if not rounds.fits:
        _least_memory(problem, settings, rounds)


def _restart(rounds: Rounds, start: list[Run]) -> None:
    """Search with other random numbers while there is time, until that has not helped for a while."""
    since_gain = 0
    while since_gain < _PATIENCE and rounds.proceed() and rounds.seconds > rounds.total:
        before = rounds.seconds
        rounds.seed += 1
        rounds.anneal(start)
        since_gain = 0 if rounds.seconds < before else since_gain + 1


def _starts_within_budget(problem: Problem, rounds: Rounds) -> Iterator[list[Run]]:
    """Yield sequences within the budget that others find."""
    left = rounds.rest().time_limit
    seconds = _ROTOR_SECONDS if left is None else min(_ROTOR_SECONDS, left)
    with contextlib.suppress(NotAcceptedError, InfeasibleError):
        answer = rotor.solve(problem, Options(seconds))
        yield runs_of(answer.schedule)
        if answer.interrupted:
            raise KeyboardInterrupt
    if len(problem.graph.operations) <= _EVICTION_OPERATIONS:
        yield from eviction.sequences(problem.graph, rounds.limit, rounds.proceed)


def _least_memory(problem: Problem, settings: Settings, rounds: Rounds) -> None:
    """Search for the least memory, whatever the budget; once within the budget, search on from there.

    Raises InfeasibleError if the least memory is more than the budget, NotFoundError if the time ran out
    unless the budget is below the minimum memory: then the least so far is named. Raises KeyboardInterrupt if
    the user ended the search before it found anything.
    """
    graph, limit = problem.graph, device_limit(problem)
    min_memory, nearest, schedule = minimum_memory(graph, problem.machine), None, None
    if rounds.proceed():
        alone = replace(rounds.rest(), race=Incumbent())  # what it finds may be above the budget
        least = Rounds(graph, min_memory, settings.moves, settings.seed, alone)
        least.anneal(in_default_mode(range(len(graph.operations))))
        while least.cut_short and least.peak > limit and least.proceed():
            least.cut_short = False
            least.anneal(in_default_mode(range(len(graph.operations))))
        rounds.clock.interrupted |= least.clock.interrupted
        if least.peak <= limit:
            rounds.anneal(least.runs())
        else:
            nearest, schedule = least.peak, least.schedule()
            if least.proceed() and not least.cut_short:
                raise InfeasibleError(NAME, limit, nearest, min_memory).holding(schedule)
    if not rounds.fits:
        rounds.clock.raise_if_interrupted()
    if limit < min_memory:
        raise InfeasibleError(NAME, limit, nearest, min_memory).holding(schedule)
    if not rounds.fits:
        raise NotFoundError(NAME, limit, min_memory, nearest).holding(schedule)
