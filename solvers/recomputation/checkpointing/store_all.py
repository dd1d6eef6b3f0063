"""Store all: the baseline schedule, as eager PyTorch runs it, without recomputation and transfers.

A budget below its peak is refused. One replay, linear in the edges.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....planner.bounds import time_bound
from ...candidates import device_limit, infeasible, plain_candidate
from ...problem import Answer, Options, Problem, Status


@dataclass(frozen=True)
class Settings:
    """Settings of store-all: none."""


def solve(problem: Problem, options: Options) -> Answer:
    del options
    plain = plain_candidate(problem.graph)
    if plain.peak > device_limit(problem):
        raise infeasible("store-all", problem, plain.peak)
    bound = time_bound(problem.graph)
    return Answer(plain.schedule, Status.OPTIMAL if plain.time <= bound else Status.HEURISTIC, bound)
