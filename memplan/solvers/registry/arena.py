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
from typing import NamedTuple

from ...graphs.units import format_bytes
from ...planner.addresses.addresses import EFFORT, lay_out, rows_of
from ...planner.addresses.layout import Layout
from ...planner.addresses.room import least_room
from ...planner.bounds import minimum_memory
from ...planner.budget import spelled
from ...planner.simulator.simulate import Figures, simulate
from ..problem import InfeasibleError, Problem, SolverResult, Status

_LESS = 0.02
"""Share of the live bytes that each further try leaves free besides."""
_TRIES = 4

TRY_SHARE = 0.25
"""Share of the time limit that each further try has: all together have less than the first."""

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
) -> tuple[SolverResult, Problem, Layout]:
    """Return an answer with a layout within the budget, and the problem of fewer live bytes that it answers.

    answer: the solver's for the whole budget.
    retry: solves for fewer live bytes.

    Raises InfeasibleError.
    """
    asked, least, fitting = problem, inf, list[Placed]()
    for number in range(_TRIES):
        figures = _figures(asked, answer)
        placed = without_loss(asked, answer, figures, problem.budget)
        least = min(least, placed.layout.size)
        if placed.layout.size <= problem.budget:
            fitting.append(placed)
            break
        fitting += _with_less(placed, figures.least_budget, problem.budget)
        if number == _TRIES - 1 or answer.interrupted:
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
    if not fitting:
        raise ArenaError(solver, problem, int(least))
    best = min(fitting, key=lambda placed: placed.seconds)
    return best.answer, best.asked, best.layout


def without_loss(asked: Problem, answer: SolverResult, figures: Figures, target: int) -> Placed:
    """Place the copies in the target size if first fit is enough, else in the smallest that costs no time."""
    placed = _placed(asked, answer, target, effort=0)
    if placed.layout.size <= target:
        return placed
    slowest = figures.time * (1 + _TOLERANCE)
    room = least_room(
        figures.least_budget,
        asked.budget,
        lambda room: _figures(replace(asked, budget=room), answer).time <= slowest,
    )
    return _placed(replace(asked, budget=room), answer, target, EFFORT)


def _with_less(placed: Placed, low: int, target: int) -> Iterator[Placed]:
    """Yield those in less memory that fit, down to `low`: with that, all that can wait does."""
    high = placed.asked.budget
    for number in range(_HALVINGS):
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
