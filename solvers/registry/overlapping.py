"""Solve graphs whose collectives are operations of a queue of their own, with solvers that know one queue.

    the graph ──collectives on the compute queue──▶ solver ──schedule──▶ collectives earlier ──▶ simulator

A list of steps keeps the rules of both graphs or of neither, and needs the same budget. So each solver solves
two graphs with one queue, in half of the time each: one in which collectives take all of their time and one
in which they take half of it, as if the rest were hidden. Of both answers, with collectives at better places
(early_collectives.py), the one is returned that the simulator finds the fastest on the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from ...graphs.errors import InputError
from ...graphs.transformations.one_queue import on_one_queue
from ...planner.errors import InvalidScheduleError
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import Figures, figures_of
from ..bounds.lower_bounds import PROVEN, lower_bounds
from ..candidates import device_limit
from ..clock import Clock
from ..early_collectives import with_early_collectives
from ..incumbent import Incumbent
from ..problem import Bound, InfeasibleError, Problem, Status, ValidatedSolution

SHARES = 1.0, 0.5
"""Shares of the collectives' time that they take in the graphs that are solved."""

_MOVING_SHARE, _MOVING_SECONDS = 0.1, 10.0
"""Share of a time limit in which the collectives of one schedule are moved, and seconds without a limit."""

Solve = Callable[[Problem, float | None, float], ValidatedSolution]
"""Function of a problem with one queue, a time limit and the seconds for bounds."""


def solve_overlapping(
    problem: Problem,
    time_limit: float | None,
    bound_seconds: float,
    race: Incumbent,
    start: Schedule | None,
    solve: Solve,
) -> ValidatedSolution:
    """Return the fastest solution of a graph with collectives. Raises InfeasibleError."""
    solving, moving = None, _MOVING_SECONDS
    if time_limit is not None:
        moving = _MOVING_SHARE * time_limit
        solving = time_limit / len(SHARES) - moving
    found = list[ValidatedSolution]()
    for share in SHARES:
        alone = replace(problem, graph=on_one_queue(problem.graph, share))
        with suppress(*([InfeasibleError] if found else [])):
            found.append(solve(alone, solving, 0.0))
    schedules = [one.schedule for one in found] + ([] if start is None else [start])
    schedule, figures = min(_candidates(problem, schedules, moving), key=lambda pair: pair[1].time)
    notes = list(dict.fromkeys(note for one in found for note in one.notes))
    interrupted = any(one.interrupted for one in found)
    bounds = _bounds(problem, schedule, figures, 0.0 if interrupted else bound_seconds, notes)
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
        seconds=sum(one.seconds for one in found),
        interrupted=interrupted,
        bounds=bounds,
        notes=tuple(notes),
        effort=None,
    )


def _candidates(
    problem: Problem, schedules: list[Schedule], seconds: float
) -> Iterator[tuple[Schedule, Figures]]:
    """Yield schedules with their figures on the graph: as they are, and with their collectives moved."""
    limit = device_limit(problem)
    for schedule in schedules:
        moved = with_early_collectives(problem.graph, schedule, limit, Clock(seconds))
        for one in (schedule, moved):
            with suppress(InvalidScheduleError):  # the simulator has the last word
                yield one, figures_of(problem.graph, one, budget=limit, machine=problem.machine)


def _bounds(
    problem: Problem, schedule: Schedule, figures: Figures, seconds: float, notes: list[str]
) -> tuple[Bound, ...]:
    """Return lower bounds, first the largest that holds for every schedule. notes: takes what failed."""
    found = lower_bounds(problem, schedule, figures.time, seconds, notes)
    best = max((bound for bound in found if bound.general), key=lambda bound: bound.seconds)
    more = [bound for bound in found if not bound.general and bound.seconds > best.seconds]
    return replace(best, seconds=min(best.seconds, figures.time)), *more


def refuse_addresses() -> None:
    """Raise InputError: schedules with collectives on a queue of their own have no addresses."""
    raise InputError(
        "addresses of schedules with collectives are not supported: leave --static-layout out, or give the "
        "collectives the queue compute"
    )
