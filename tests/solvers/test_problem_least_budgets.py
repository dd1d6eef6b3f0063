"""The least budget that a refusal names is reached, by every registered solver that names one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from memplan.graphs.errors import InputError
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from memplan.solvers.registry import run as registry
from odd_graphs import odd_problem
from solver_cases import random_problem

SLOW = {"auto", "moccasin", "search", "joint", "offload-greedy", "rockmate"}
SOLVERS = [entry.name for entry in registry.entries() if entry.name not in SLOW]
"""The others are looked at by test_every_solver_fuzz.py and benchmarks/fuzz.py: with as much time as they
want they take seconds a problem."""

PROBLEMS = 12
SECONDS = 10.0


@pytest.mark.sampled(14)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_least_budget_that_a_refusal_names_is_reached(solver: str) -> None:
    """Of a byte, and of the floor."""
    settings = {"cache": "off"} if "cache" in registry.settings_of(solver) else {}
    for seed in range(PROBLEMS):
        try:
            problem = random_problem(seed) if seed % 2 else odd_problem(Random(seed))
        except InputError:  # beyond what readers take
            continue
        if len(problem.graph.operations) > 30 or baseline(problem.graph).peak > 2**36:
            continue
        for budget in (1, max(1, minimum_memory(problem.graph, problem.machine))):
            least = least_named(solver, replace(problem, budget=budget), settings)
            if least is not None:
                alone = problem.machine and replace(problem.machine, device_capacity=None)
                enough = replace(problem, budget=least, machine=alone)
                found = registry.solve(solver, enough, 2 * SECONDS, settings, bound_seconds=0)
                assert found.figures.peak <= least


def least_named(solver: str, problem: Problem, settings: dict[str, str]) -> int | None:
    try:
        registry.solve(solver, problem, SECONDS, settings, bound_seconds=0)
    except InfeasibleError as refusal:
        return refusal.least
    except NotAcceptedError:
        pass
    return None
