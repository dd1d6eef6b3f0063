"""Solve graphs whose collectives are operations of a queue of their own, with solvers that know one queue.

    the graph ──collectives on the compute queue──▶ solver ──schedule──▶ collectives earlier ──▶ simulator

A list of steps keeps the rules of both graphs or of neither, and needs the same budget. So each solver solves
two graphs with one queue: one in which collectives take all of their time and one in which they take half of
it, as if the rest were hidden. Of both answers, with collectives at better places (early_collectives.py), the
one is returned that the simulator finds the fastest on the graph.

On a machine with links, solvers that search jointly spend most of the time on the graph itself, from answers
to graphs in which collectives take half of their time and none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from ...graphs.errors import InputError
from ...graphs.transformations.one_queue import on_one_queue
from ...planner.errors import InvalidScheduleError
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import Figures, figures_of
from ..bounds.lower_bounds import lower_bounds
from ..candidates import device_limit
from ..clock import Clock
from ..early_collectives import with_early_collectives
from ..incumbent import PROVEN
from ..problem import (
    Bound,
    InfeasibleError,
    Options,
    Problem,
    SolverResult,
    Status,
    ValidatedSolution,
)
from ..skipped import skipping

SHARES = 1.0, 0.5
"""Shares of the collectives' time that they take in the graphs that are solved."""

_SHARES_BEFORE, _BEFORE = (0.5, 0.0), 0.4
"""Shares of that time before a search on the graph itself, and the share of a time limit for these solves."""

_MOVING_SHARE, _MOVING_SECONDS = 0.1, 10.0
"""Share of a time limit in which the collectives of one schedule are moved, and seconds without a limit."""

Solve = Callable[[Problem, float | None, float], ValidatedSolution]
"""Function of a problem with one queue, a time limit and the seconds for bounds."""

Search = Callable[[Problem, Options, Sequence[tuple[Schedule, float]]], SolverResult]
"""Function of a problem with collectives, options, and schedules with their seconds, which it improves."""


def solve_overlapping(
    problem: Problem, options: Options, bound_seconds: float, solve: Solve, search: Search | None
) -> ValidatedSolution:
    """Return the fastest solution of a graph with collectives. Raises InfeasibleError.

    search: for machines with links.
    """
    time_limit, race, clock = options.time_limit, options.race, options.clock()
    machine = problem.machine or problem.graph.machine
    if machine is None or not machine.can_transfer:
        search = None
    shares, part = (_SHARES_BEFORE, _BEFORE) if search else (SHARES, 1.0)
    solving, moving = None, _MOVING_SECONDS
    if time_limit is not None:
        moving = _MOVING_SHARE * part * time_limit
        solving = part * time_limit / len(shares) - moving
    found = list[ValidatedSolution]()
    for share in shares:
        alone = replace(problem, graph=on_one_queue(problem.graph, share))
        # The budget needed is the same in both graphs, so the first refusal holds for all.
        with suppress(*([InfeasibleError] if found else [])):
            found.append(solve(alone, solving, 0.0))
    schedules = [one.schedule for one in found] + ([] if options.start is None else [options.start])
    candidates = [_fastest(problem, schedule, moving) for schedule in schedules]
    interrupted = any(one.interrupted for one in found)
    if search and not interrupted:
        known = [(schedule, figures.time) for schedule, figures in candidates]
        with skipping(found[0].solver):
            result = search(problem, replace(options, time_limit=clock.limit), known)
            candidates.append(_fastest(problem, result.schedule, 0.0))
            interrupted = result.interrupted
    schedule, figures = min(candidates, key=lambda pair: pair[1].time)
    notes = list(dict.fromkeys(note for one in found for note in one.notes))
    seconds = monotonic() - clock.begin
    bounds = _bounds(problem, schedule, figures, 0.0 if interrupted else bound_seconds, notes)
    # Only now: times in graphs with one queue are none of this graph.
    race.found(figures.time, found[0].solver)
    race.proved(bounds[0].seconds, bounds[0].name)
    proven = figures.time <= bounds[0].seconds * (1.0 + PROVEN)
    stopped = any(one.status is Status.FEASIBLE for one in found)
    return replace(
        found[0],
        schedule=schedule,
        figures=figures,
        lower_bound=bounds[0].seconds,
        status=Status.OPTIMAL if proven else Status.FEASIBLE if stopped else Status.HEURISTIC,
        seconds=seconds,
        interrupted=interrupted,
        bounds=bounds,
        notes=tuple(notes),
        # It would be that of one of several solves.
        effort=None,
    )


def _fastest(problem: Problem, schedule: Schedule, seconds: float) -> tuple[Schedule, Figures]:
    """Return the schedule as it is, or with its collectives moved, and its figures on the graph."""
    limit = device_limit(problem)
    found = schedule, figures_of(problem.graph, schedule, budget=limit, machine=problem.machine)
    moved = with_early_collectives(problem.graph, schedule, limit, Clock(seconds))
    with suppress(InvalidScheduleError):  # the simulator has the last word
        figures = figures_of(problem.graph, moved, budget=limit, machine=problem.machine)
        if figures.time < found[1].time:
            found = moved, figures
    return found


def _bounds(
    problem: Problem, schedule: Schedule, figures: Figures, seconds: float, notes: list[str]
) -> tuple[Bound, ...]:
    """Return lower bounds, first the largest that holds for every schedule. notes: takes what failed."""
    found = lower_bounds(problem, schedule, figures.time, seconds, notes)
    best = max((bound for bound in found if bound.general), key=lambda bound: bound.seconds)
    more = [bound for bound in found if not bound.general and bound.seconds > best.seconds]
    # A bound and a time are rounded differently: of equal ones the bound may be the larger.
    return replace(best, seconds=min(best.seconds, figures.time)), *more


def refuse_addresses() -> None:
    """Raise InputError: schedules with collectives on a queue of their own have no addresses."""
    raise InputError(
        "addresses of schedules with collectives are not supported: leave --static-layout out, or give the "
        "collectives the queue compute"
    )
