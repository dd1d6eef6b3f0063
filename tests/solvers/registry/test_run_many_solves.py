"""Many solves in one process: the same bytes from the same seed, and no growth of memory."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from memplan.graphs.generators import chain, layered
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import Problem, ValidatedSolution
from memplan.solvers.registry import run as registry
from solver_cases import warm_up

SOLVES = 45
"""benchmarks/fuzz.py makes thousands."""

MOST_GROWTH = 300_000
"""Bytes, over all of these solves; one that kept its graph or schedule would take more."""


def solved(number: int, solver: str, settings: dict[str, str]) -> ValidatedSolution:
    graph = layered(12, seed=number % 7, width=4) if number % 2 else chain(6, seed=number % 7)
    budget = (minimum_memory(graph) + 2 * baseline(graph).peak) // 3
    return registry.solve(solver, Problem(graph, budget), settings=settings, bound_seconds=0)


@pytest.mark.parametrize(("solver", "settings"), [("search", {"moves": "20"}), ("tw-remat", {})])
def test_the_same_seed_gives_the_same_bytes(solver: str, settings: dict[str, str]) -> None:
    for number in range(2):
        first, recomputed = (solved(number, solver, settings).schedule for _ in range(2))
        for column in ("verbs", "targets", "wheres"):
            assert getattr(first, column).tobytes() == getattr(recomputed, column).tobytes()
        assert first.initial == recomputed.initial


@pytest.mark.scripts
def test_memory_does_not_grow() -> None:
    warm_up(["search"])
    solvers = [("search", {"moves": "5"}), ("tw-remat", {}), ("store-all", {})]

    def some(count: int) -> None:
        for number in range(count):
            for solver, settings in solvers:
                try:
                    solved(number, solver, settings)
                except Exception:
                    continue  # a refusal, which must not keep anything either

    some(8)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    some(SOLVES // len(solvers))
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < MOST_GROWTH
