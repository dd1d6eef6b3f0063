"""An answer whose copies all have an address within the budget: the arena counts, not the live bytes alone.

    solver ──answer──▶ lifetimes ──lay_out──▶ arena ≤ budget? ──▶ answer, layout
      ▲                    ▲                    │ no
      │                    └── in less memory ──┤
      └── for budget · budget / arena ──────────┘ if that costs time

No arena is smaller than the peak of live bytes, and many schedules have none as small: copies that come and
go in crossed order leave gaps. If tensors are transferred, there is another try before the solver is asked
for less: in less memory allocations wait for more transfers, so that fewer copies exist at once. Often the
link has the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from time import monotonic
from typing import NamedTuple

from ...graphs.units import format_bytes
from ...planner.addresses.addresses import EFFORT, lay_out, rows_of
from ...planner.addresses.layout import Layout
from ...planner.addresses.room import least_room
from ...planner.bounds import minimum_memory
from ...planner.budget import spelled
from ...planner.simulator.simulate import Figures, simulate
from ..clock import Clock
from ..problem import InfeasibleError, Problem, SolverResult, Status

_LESS = 0.02
"""Share of the live bytes that each further try leaves free besides."""
_TRIES = 4

FIRST_SHARE, TRY_SHARE, LEAST_TRY_SHARE = 0.7, 0.25, 0.1
"""Shares of the time limit: of the first search, of each further try at most, and at least. What is left is
for addresses and simulations."""

GRACE_SECONDS = 4.0
"""Seconds by which addresses may take longer than a time limit: within a short one little can be tried."""

_PLACINGS = 12
"""So many times as first fit took: with less time than that, only first fit gives addresses."""

_TOLERANCE = 1e-3
"""Share of the period that less memory may cost without a search for another schedule."""

_HALVINGS, _EFFORT = 4, EFFORT // 8
"""Number of smaller sizes to try if one costs more; the effort for the addresses in each: half a second."""


class ArenaError(InfeasibleError):
    """No schedule was found whose addresses fit. least: bytes of the smallest arena that was."""

    def __init__(self, solver: str, problem: Problem, least: int) -> None:
        super().__init__(solver, problem.budget, least, minimum_memory(problem.graph, problem.machine))

    def _verdict(self) -> str:
        return (
            f"no addresses within {spelled(self.budget)}: the smallest arena found has "
            f"{spelled(self.least or 0)}; give a larger budget, or --no-static-layout "
            "to have the budget hold live bytes alone"
        )


class Placed(NamedTuple):
    """An answer whose copies have addresses within the budget.

    seconds: the period.
    asked: the problem with the budget of live bytes for which this was found.
    """

    seconds: float
    answer: SolverResult
    asked: Problem
    layout: Layout


def in_arena(
    solver: str,
    problem: Problem,
    answer: SolverResult,
    retry: Callable[[Problem], SolverResult],
    report: Callable[[str], None],
    clock: Clock | None = None,
) -> tuple[SolverResult, Problem, Layout]:
    """Return an answer with a layout within the budget, and the problem of fewer live bytes that it answers.

    answer: the solver's for the whole budget.
    retry: solves for fewer live bytes.
    clock: of the time limit, which began before the solver did. Searches after it and GRACE_SECONDS are short
        ones, unless nothing fits then: an answer is worth more than these seconds.

    Raises InfeasibleError.
    """
    asked, least, fitting, clock = problem, inf, list[Placed](), clock or Clock(None)
    waiting: list[tuple[Placed, Figures]] = []
    for number in range(_TRIES):
        figures, begin = _figures(asked, answer), monotonic()
        placed = _placed(asked, answer, problem.budget, effort=0)
        hurried = clock.left + GRACE_SECONDS < _PLACINGS * (monotonic() - begin)
        if hurried:
            waiting.append((placed, figures))
        else:
            placed = _with_effort(placed, figures, problem.budget)
        least = min(least, placed.layout.size)
        if placed.layout.size <= problem.budget:
            fitting.append(placed)
            break
        last = number == _TRIES - 1 or answer.interrupted
        if last or not hurried:
            halvings = 1 if hurried else _HALVINGS
            fitting += _with_less(placed, figures.least_budget, problem.budget, halvings)
        if last:
            break
        # At least so much less: an arena a hair too large would ask for nearly the same schedule.
        share = min(problem.budget / placed.layout.size, 1 - _LESS * number)
        asked = replace(asked, budget=int(placed.layout.bound * share))
        arena, less = format_bytes(placed.layout.size), format_bytes(asked.budget)
        report(f"{solver}: the arena has {arena}, solving for {less}")
        try:
            answer = _for_less(retry(asked))
        except InfeasibleError:
            break
    for placed, figures in sorted(waiting, key=lambda each: each[0].layout.size):
        if fitting:
            break
        # Nothing fits by first fit: before a refusal the time limit does not count.
        placed = _with_effort(placed, figures, problem.budget)
        least = min(least, placed.layout.size)
        if placed.layout.size <= problem.budget:
            fitting.append(placed)
        else:
            fitting += _with_less(placed, figures.least_budget, problem.budget, _HALVINGS)
    if not fitting:
        raise ArenaError(solver, problem, int(least))
    best = min(fitting, key=lambda placed: placed.seconds)
    return best.answer, best.asked, best.layout


def without_loss(asked: Problem, answer: SolverResult, figures: Figures, target: int) -> Placed:
    """Place the copies in the target size if first fit is enough, else in the smallest that costs no time."""
    return _with_effort(_placed(asked, answer, target, effort=0), figures, target)


def _with_effort(placed: Placed, figures: Figures, target: int) -> Placed:
    asked, answer = placed.asked, placed.answer
    if placed.layout.size <= target:
        return placed
    slowest = figures.time * (1 + _TOLERANCE)
    room = least_room(
        figures.least_budget,
        asked.budget,
        lambda room: _figures(replace(asked, budget=room), answer).time <= slowest,
    )
    return _placed(replace(asked, budget=room), answer, target, EFFORT)


def _with_less(placed: Placed, low: int, target: int, halvings: int) -> Iterator[Placed]:
    """Yield those in less memory that fit, down to `low`: with that, all that can wait does."""
    high = placed.asked.budget
    for number in range(halvings):
        middle = (low + high) // 2 if number else low
        if middle >= high:
            return
        less = _placed(replace(placed.asked, budget=middle), placed.answer, target, _EFFORT)
        if less.layout.size <= target:
            yield less
            low = middle
        elif not number:
            return
        else:
            high = middle


def _placed(asked: Problem, answer: SolverResult, target: int, effort: int) -> Placed:
    rows = rows_of(asked.graph, answer.schedule, budget=asked.budget, machine=asked.machine)
    return Placed(_figures(asked, answer).time, answer, asked, lay_out(rows, target, effort))


def _figures(asked: Problem, answer: SolverResult) -> Figures:
    return simulate(asked.graph, answer.schedule, budget=asked.budget, machine=asked.machine).figures


def _for_less(answer: SolverResult) -> SolverResult:
    """Return an answer that was found for fewer bytes, without claims that do not hold for the budget."""
    proven = answer.status in (Status.OPTIMAL, Status.WITHIN_GAP)
    status = Status.FEASIBLE if proven else answer.status
    return replace(answer, status=status, lower_bound=None, bounds=())
