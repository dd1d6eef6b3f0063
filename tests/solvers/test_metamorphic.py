"""Metamorphic oracles: a change of a problem with a known effect on the answer, for every solver and bound.

Nothing needs to know the right answer: other units scale it; other names and numbers leave it as it is, and
so does a memory that nobody needs; a larger budget never makes an exact solver's answer slower. The clock
stands still, as in the golden table, so no limit in seconds cuts a search. More random problems, against
exhaustive searches and each other: benchmarks/fuzz.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, isclose
from random import Random
from typing import NamedTuple

import pytest
from exact import optimal_time
from golden_table import SETTINGS, freeze_the_clock
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, minimum_memory_once, time_bound
from memplan.solvers.bounds.offload.offload_bound import moves, offload_bound
from memplan.solvers.bounds.residency.residency import free_order_bound, residency_bound
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from memplan.solvers.registry import run as registry
from small_graphs import small_graph
from small_offload import small_case, small_training
from training_graphs import training
from transformed_problems import (
    add_unused_memory,
    permute_independent,
    rename,
    renumber_tensors,
    scale_bytes,
    scale_times,
)

MiB = 2**20
TOLERANCE = 1e-6
"""Relative difference of two times that the programs of integers leave."""

PROCESSES = ("auto", "moccasin", "rockmate", "hiremate")
"""Solvers that start processes or combine the others: the solvers that they use are tested here."""

SOLVERS = [entry.name for entry in registry.entries() if entry.module.startswith(".")]
SHARDED = ("fsdp", "fsdp-tuned", "fsdp-prefetch", "sharded-search")
"""Solvers of sharded graphs alone, whose shares are rounded up: solvers/offloading/test_sharded.py."""
QUICK = [solver for solver in SOLVERS if solver not in (*PROCESSES, *SHARDED)]

RANDOM = ("search", "joint", "offload-greedy")
"""Solvers whose few random moves depend on the tensors' numbers."""

SLOW = ("joint", "offmate")
"""Solvers that take a second and more for each round of problems."""

EXACT = ("checkmate", "rk-checkmate", "rotor")
"""Solvers that prove their answer the fastest of its form."""


class Outcome(NamedTuple):
    """Seconds of the schedule, ∞ if there is none within the budget; then the smallest budget found."""

    seconds: float
    least: int | None = None


class Change(NamedTuple):
    """A transformation of a problem, and by what it multiplies seconds and bytes of the answer."""

    name: str
    make: Callable[[Problem, Random], Problem]
    seconds: float = 1.0
    bytes: int = 1


RENUMBERED = "tensors in another order"
CHANGES = (
    Change("four times the seconds", lambda problem, _random: scale_times(problem, 4.0), seconds=4.0),
    Change("an eighth of the seconds", lambda problem, _random: scale_times(problem, 0.125), seconds=0.125),
    Change("four times the bytes", lambda problem, _random: scale_bytes(problem, 4), bytes=4),
    Change("other names", rename),
    Change(RENUMBERED, renumber_tensors),
    Change("one more memory", lambda problem, _random: add_unused_memory(problem)),
)


def problems(seed: int) -> Iterator[Problem]:
    """Yield one of each kind: a small graph with all rules, a chain, a training graph, three with links."""
    random = Random(seed)
    kind = random.choice(("none", "end", "early"))
    yield within(small_graph(random), random)
    yield within(chain(random.randint(2, 5), seed=random.randrange(99)), random)
    yield within(training(1, random.randrange(999), skip=random.choice((0, 0.4)), update=kind), random)
    case = small_case(random.randrange(999))
    yield Problem(case.graph, case.budget, case.machine)
    layers = small_training(random, 3, states=True, host=True, saved=True, moving=9)
    yield within(layers, random, Machine(links=Links(2, 2, 2, 2)))
    blocks = chain(random.randint(3, 6), seed=random.randrange(99))
    yield within(blocks, random, Machine(links=Links(2 * MiB, 2 * MiB, 2 * MiB, 2 * MiB)))


def within(graph: Graph, random: Random, machine: Machine | None = None) -> Problem:
    """Return the problem with a budget between the minimum memory and the baseline's peak."""
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    return Problem(graph, random.randint(low, max(low, high)), machine)


def outcome(solver: str, problem: Problem) -> Outcome | None:
    """Solve; None if the solver does not take graphs of this form."""
    try:
        found = registry.solve(solver, problem, None, SETTINGS.get(solver), bound_seconds=0)
    except InfeasibleError as refusal:
        return Outcome(inf, refusal.least)
    except NotAcceptedError:
        return None
    return Outcome(found.figures.time)


def same(one: float, other: float) -> bool:
    return one == other or isclose(one, other, rel_tol=TOLERANCE)


@pytest.fixture(autouse=True, scope="module")
def _still_clock() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        freeze_the_clock(patch)
        yield


@pytest.mark.sampled(3)
@pytest.mark.parametrize("solver", QUICK)
def test_units_names_and_unused_memories_change_no_answer(solver: str) -> None:
    solved = 0
    for seed in range(1 if solver in SLOW else 2):
        for problem in problems(seed):
            before = outcome(solver, problem)
            if before is None:
                continue
            for change in CHANGES:
                if change.name == RENUMBERED and solver in RANDOM:
                    continue
                after = outcome(solver, change.make(problem, Random(seed)))
                assert after is not None, (change.name, seed)
                assert same(after.seconds, change.seconds * before.seconds), (change.name, seed)
                assert after.least == (before.least and change.bytes * before.least), (change.name, seed)
                solved += after.seconds < inf
    assert solved


@pytest.mark.parametrize("solver", EXACT)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_a_larger_budget_makes_no_exact_answer_slower(solver: str, seed: int) -> None:
    random = Random(seed)
    for problem in problems(seed):
        before = outcome(solver, problem)
        if before is None:
            continue
        step = random.choice((1, 2, max(1, problem.budget // 7)))
        after = outcome(solver, replace(problem, budget=problem.budget + step))
        assert after is not None
        assert after.seconds <= before.seconds * (1 + TOLERANCE)
        if before.least is not None and problem.budget + step >= before.least:
            assert after.seconds < inf


def bounds(problem: Problem) -> dict[str, float]:
    """Return all lower bounds, in bytes or seconds, by name; those of any order begin with that."""
    graph, budget, machine = problem.graph, problem.budget, problem.machine
    found = {
        "any order, bytes": float(minimum_memory(graph, machine)),
        "traced order, bytes": float(minimum_memory_once(graph, machine) or 0),
        "any order, operations": time_bound(graph),
        "any order, residency": free_order_bound(graph, budget).bound.seconds,
        "traced order, residency": residency_bound(graph, budget).bound.seconds,
    }
    if moves(machine):
        assert machine is not None
        found["any order, offloading"] = offload_bound(graph, machine, budget, order="any").seconds
        found["traced order, offloading"] = offload_bound(graph, machine, budget).seconds
    return found


@given(seed=st.integers(0, 10**6))
@settings(max_examples=2)
def test_units_names_and_unused_memories_change_no_bound(seed: int) -> None:
    for problem in problems(seed):
        before = bounds(problem)
        for change in CHANGES:
            for name, bound in bounds(change.make(problem, Random(seed))).items():
                factor = change.bytes if name.endswith("bytes") else change.seconds
                assert same(bound, factor * before[name]), (change.name, name)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=2)
def test_a_larger_budget_raises_no_bound(seed: int) -> None:
    random = Random(seed)
    for problem in problems(seed):
        larger = replace(problem, budget=problem.budget + random.choice((1, 2, max(1, problem.budget // 7))))
        before, after = bounds(problem), bounds(larger)
        for name in before:
            assert after[name] <= before[name] * (1 + TOLERANCE), name


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_independent_operations_in_another_order_change_no_optimum(seed: int) -> None:
    """The fastest of all orders is the same, by exhaustive search, and no bound for any order is above it.

    checkmate keeps the traced order, so its answers may differ, but none is faster.
    """
    random = Random(seed)
    problem = within(small_graph(random), random)
    permuted = replace(problem, graph=permute_independent(problem.graph, random))
    best, other = (optimal_time(one.graph, one.budget) for one in (problem, permuted))
    assert best == other
    fastest = inf if best is None else best
    for one in (problem, permuted):
        found = outcome("checkmate", one)
        assert found is not None
        assert found.seconds >= fastest * (1 - TOLERANCE)
        assert free_order_bound(one.graph, one.budget).bound.seconds <= fastest * (1 + TOLERANCE)
    assert minimum_memory(problem.graph) == minimum_memory(permuted.graph)
    assert time_bound(problem.graph) == pytest.approx(time_bound(permuted.graph))
