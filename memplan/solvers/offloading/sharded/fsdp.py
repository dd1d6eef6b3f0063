"""FSDP2 with the same settings for all layers: the fastest of its 2 × 3 policies within the budget.

Nothing is searched: policies.py has the schedules, and each is replayed, by compiled code on large graphs.
The simulator validates the answer. A time limit does not end it: 4,000 operations take some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from .policies import POLICIES, LayeredPolicy, Policy, accepted, policy_residency

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

    policy: Policy | LayeredPolicy
    schedule: Schedule
    least: int
    seconds: float | None


def solve(problem: Problem, options: Options) -> SolverResult:
    accepted(problem.graph, NAME)
    clock, timed = Clock(None, options.cancelled), list[TimedPolicy]()
    with clock.until_interrupted():
        for one in timed_policies(problem):
            timed.append(one)
            if clock.expired and any(each.seconds is not None for each in timed):
                break
    return fastest_that_holds(NAME, problem, options, timed, clock)


def fastest_that_holds(
    solver: str, problem: Problem, options: Options, timed: Sequence[TimedPolicy], clock: Clock
) -> SolverResult:
    """Return the fastest policy that fits and that the simulator accepts.

    Raises InfeasibleError with the smallest budget of any, or KeyboardInterrupt.
    """
    fitting = [one for one in timed if one.seconds is not None]
    for policy, schedule, *_figures in sorted(fitting, key=lambda one: one.seconds or 0.0):
        if _least_budget(problem, schedule) <= device_limit(problem):
            options.report(f"{solver}: {policy}")
            bound, interrupted = time_bound(problem.graph), clock.interrupted
            return SolverResult(schedule, Status.HEURISTIC, bound, interrupted, policy=str(policy))
    clock.raise_if_interrupted()
    by_memory = (one.schedule for one in sorted(timed, key=lambda one: one.least))
    smallest = next((one for one in by_memory if _least_budget(problem, one) < inf), None)
    least = None if smallest is None else int(_least_budget(problem, smallest))
    raise infeasible(solver, problem, least, smallest)


def _least_budget(problem: Problem, schedule: Schedule) -> float:
    """Return the smallest budget in bytes by the simulator; ∞ if the schedule breaks a rule."""
    with suppress(InvalidScheduleError):
        return simulate(problem.graph, schedule, machine=problem.machine).figures.least_budget
    return inf


class PolicyTimer:
    """Times policies: by the compiled replay if loading it takes less than simulating.

    The replay knows no rule but memory and time.
    """

    def __init__(self, problem: Problem) -> None:
        self._graph, self._machine = problem.graph, problem.machine or problem.graph.machine or Machine()
        self._limit = device_limit(problem)
        compiled = bool(replay.signatures)  # pyright: ignore[reportFunctionMemberAccess]
        if not compiled and len(self._graph.operations) >= _LARGE and is_compiled(replay):
            compile_replay()
            compiled = True
        self._replays = Replays(self._graph, self._machine) if compiled else None

    def timed(self, policy: Policy | LayeredPolicy, schedule: Schedule) -> TimedPolicy | None:
        """Return a policy's figures; None if its schedule breaks a rule."""
        if self._replays is not None:
            least = self._replays.least_budget(schedule)
            if least is None:
                return None
            return TimedPolicy(policy, schedule, least, self._replays.seconds(schedule, self._limit))
        with suppress(InvalidScheduleError):
            least, seconds = simulate(self._graph, schedule, machine=self._machine).figures.least_budget, None
            if least <= self._limit:
                held = simulate(self._graph, schedule, budget=self._limit, machine=self._machine)
                seconds = held.figures.time
            return TimedPolicy(policy, schedule, least, seconds)
        return None


def timed_policies(problem: Problem) -> Iterator[TimedPolicy]:
    """Yield the policies that the graph has, with their figures."""
    timer = PolicyTimer(problem)
    for policy, schedule in built_policies(problem.graph):
        if (one := timer.timed(policy, schedule)) is not None:
            yield one


def policy_schedules(problem: Problem) -> Iterator[tuple[Policy, Schedule, Figures]]:
    """Yield the policies that the graph has, each with its schedule and its figures on a device of any
    size."""
    for policy, schedule in built_policies(problem.graph):
        with suppress(InvalidScheduleError):
            yield policy, schedule, simulate(problem.graph, schedule, machine=problem.machine).figures


def built_policies(graph: Graph) -> Iterator[tuple[Policy, Schedule]]:
    """Yield the policies that the graph has layers for, each with its schedule, which may be invalid."""
    for policy in POLICIES:
        if (schedule := built_policy(graph, policy)) is not None:
            yield policy, schedule


def built_policy(graph: Graph, policy: Policy | LayeredPolicy) -> Schedule | None:
    """Return the schedule of a policy, which may be invalid; None if the graph has no layers for it."""
    with suppress(InvalidScheduleError, NotAcceptedError):
        return build_schedule(graph, policy_residency(graph, policy))
    return None
