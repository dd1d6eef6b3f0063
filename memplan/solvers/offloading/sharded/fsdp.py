"""FSDP2 as people tune it: the fastest of its 2 × 3 policies within the budget.

Nothing is searched: policies.py has the schedules, and each is replayed, by compiled code on large graphs.
The simulator validates the answer. A time limit does not end it: 4,000 operations take some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from ....graphs.compiled import is_compiled
from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....planner.bounds import time_bound
from ....planner.errors import InvalidScheduleError
from ....planner.replay.ranking import Replays
from ....planner.replay.replay import replay
from ....planner.residency.prefetch_placement import build_schedule
from ....planner.schedule.schedule import Schedule
from ....planner.simulator.simulate import Figures, simulate
from ...candidates import device_limit, infeasible
from ...clock import Clock
from ...problem import NotAcceptedError, Options, Problem, SolverResult, Status
from ..joint.compiling import compile_replay
from .policies import POLICIES, Policy, accepted, policy_residency

NAME = "fsdp"

_LARGE = 1000
"""Operations from which on six simulations take longer than loading the compiled replay."""


@dataclass(frozen=True)
class Settings:
    """Settings of fsdp: none."""


class TimedPolicy(NamedTuple):
    """A policy's schedule and figures.

    least: smallest budget in bytes.
    seconds: of an iteration, None if it does not fit.
    """

    policy: Policy
    schedule: Schedule
    least: int
    seconds: float | None


def solve(problem: Problem, options: Options) -> SolverResult:
    accepted(problem.graph, NAME)
    clock, timed, fitting = Clock(None, options.cancelled), list[TimedPolicy](), list[tuple[float, int]]()
    with clock.until_interrupted():
        for number, one in enumerate(_timed_policies(problem)):
            timed.append(one)
            if one.seconds is not None:
                fitting.append((one.seconds, number))
            if fitting and clock.expired:
                break
    for _seconds, number in sorted(fitting):
        policy, schedule = timed[number][:2]
        if _least_budget(problem, schedule) <= device_limit(problem):
            options.report(f"{NAME}: {policy}")
            bound, interrupted = time_bound(problem.graph), clock.interrupted
            return SolverResult(schedule, Status.HEURISTIC, bound, interrupted, policy=str(policy))
    clock.raise_if_interrupted()
    by_memory = (one.schedule for one in sorted(timed, key=lambda one: one.least))
    smallest = next((one for one in by_memory if _least_budget(problem, one) < inf), None)
    least = None if smallest is None else int(_least_budget(problem, smallest))
    raise infeasible(NAME, problem, least, smallest)


def _least_budget(problem: Problem, schedule: Schedule) -> float:
    """Return the smallest budget in bytes by the simulator; ∞ if the schedule breaks a rule."""
    with suppress(InvalidScheduleError):
        return simulate(problem.graph, schedule, machine=problem.machine).figures.least_budget
    return inf


def _timed_policies(problem: Problem) -> Iterator[TimedPolicy]:
    """Yield the policies with their figures, by the compiled replay if loading it takes less than simulating.

    The replay knows no rule but memory and time.
    """
    graph, machine, limit = problem.graph, problem.machine or problem.graph.machine, device_limit(problem)
    compiled = bool(replay.signatures)  # pyright: ignore[reportFunctionMemberAccess]
    if not compiled and len(graph.operations) >= _LARGE and is_compiled(replay):
        compile_replay()
        compiled = True
    if compiled:
        replays = Replays(graph, machine or Machine())
        for policy, schedule in built_policies(graph):
            least = replays.least_budget(schedule)
            if least is not None:
                yield TimedPolicy(policy, schedule, least, replays.seconds(schedule, limit))
        return
    for policy, schedule, figures in policy_schedules(problem):
        fits, seconds = figures.least_budget <= limit, None
        if fits:
            seconds = simulate(graph, schedule, budget=limit, machine=machine).figures.time
        yield TimedPolicy(policy, schedule, figures.least_budget, seconds)


def policy_schedules(problem: Problem) -> Iterator[tuple[Policy, Schedule, Figures]]:
    """Yield the policies that the graph has, each with its schedule and its figures on a device of any
    size."""
    for policy, schedule in built_policies(problem.graph):
        with suppress(InvalidScheduleError):
            yield policy, schedule, simulate(problem.graph, schedule, machine=problem.machine).figures


def built_policies(graph: Graph) -> Iterator[tuple[Policy, Schedule]]:
    """Yield the policies that the graph has layers for, each with its schedule, which may be invalid."""
    for policy in POLICIES:
        with suppress(InvalidScheduleError, NotAcceptedError):
            yield policy, build_schedule(graph, policy_residency(graph, policy))
