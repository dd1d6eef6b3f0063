"""Store all: the baseline schedule, as eager PyTorch runs it, without recomputation and transfers.

A budget below its peak is refused. One replay, linear in the edges.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....planner.bounds import time_bound
from ...candidates import baseline_candidate, device_limit, infeasible
from ...problem import Options, Problem, SolverResult, Status


@dataclass(frozen=True)
class Settings:
    """Settings of store-all: none."""


def solve(problem: Problem, options: Options) -> SolverResult:
    del options
    baseline = baseline_candidate(problem.graph)
    if baseline.peak > device_limit(problem):
        raise infeasible("store-all", problem, baseline.peak)
    bound = time_bound(problem.graph)
    return SolverResult(
        baseline.schedule, Status.OPTIMAL if baseline.time <= bound else Status.HEURISTIC, bound
    )
