"""FSDP2 as people tune it: the fastest of its 2 × 3 policies within the budget.

Nothing is searched: policies.py has the schedules, the simulator times each. Six replays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from ....graphs.graph import Graph
from ....planner.bounds import time_bound
from ....planner.errors import InvalidScheduleError
from ....planner.residency.prefetch_placement import build_schedule
from ....planner.schedule.schedule import Schedule
from ....planner.simulator.simulate import Figures, simulate
from ...candidates import device_limit, infeasible
from ...problem import NotAcceptedError, Options, Problem, SolverResult, Status
from .policies import POLICIES, Policy, accepted, policy_residency

NAME = "fsdp"


@dataclass(frozen=True)
class Settings:
    """Settings of fsdp: none."""


def solve(problem: Problem, options: Options) -> SolverResult:
    accepted(problem.graph, NAME)
    fastest, least = None, inf
    for policy, schedule, figures in policy_schedules(problem):
        least = min(least, figures.least_budget)
        if figures.least_budget <= device_limit(problem):
            within = simulate(problem.graph, schedule, budget=device_limit(problem), machine=problem.machine)
            if fastest is None or within.figures.time < fastest[0]:
                fastest = within.figures.time, policy, schedule
    if fastest is None:
        raise infeasible(NAME, problem, None if least == inf else int(least))
    _seconds, policy, schedule = fastest
    options.report(f"{NAME}: {policy}")
    return SolverResult(schedule, Status.HEURISTIC, time_bound(problem.graph), policy=str(policy))


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
