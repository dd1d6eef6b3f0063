"""Bounds in exact or outward-rounded arithmetic: bytes from 1 to 2^50, times over 12 orders of magnitude.

A hundred thousand graphs of the same kind: benchmarks/bounds_against_optima.py.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest
from exact import optimal_time
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.graphs.outward import float_below, product_below, sum_below
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from memplan.solvers.bounds.residency.residency import free_order_bound, residency_bound
from memplan.solvers.milp import highs, safe_bounds
from memplan.solvers.milp.model import Model, Program
from memplan.solvers.milp.result import MilpStatus, Settings, bound_below
from memplan.solvers.milp.safe_bounds import relaxed
from memplan.solvers.milp.scaling import scaled
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from small_offload import small_case
from wide_graphs import exact_budget, false_bounds, wide_graph

FLOATS = st.floats(0.0, 2.0**600, allow_subnormal=True)


@given(st.lists(FLOATS, max_size=12))
def test_a_sum_is_rounded_down(values: list[float]) -> None:
    exact, found = sum(map(Fraction, values)), sum_below(values)
    assert Fraction(found) <= exact < Fraction(float(np.nextafter(found, inf)))
    assert sum_below([*values, inf]) == inf


@given(FLOATS, st.floats(0.0, 2.0**400))
def test_a_product_is_rounded_down(one: float, other: float) -> None:
    exact, found = Fraction(one) * Fraction(other), product_below(one, other)
    assert Fraction(found) <= exact < Fraction(float(np.nextafter(found, inf)))
    assert product_below(inf, 2.0) == inf
    assert product_below(-inf, 2.0) == -inf


def test_fractions_beyond_floats_are_rounded_down() -> None:
    assert float_below(Fraction(10) ** 400) == float(np.finfo(np.float64).max)
    assert float_below(Fraction(1, 3)) < Fraction(1, 3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("batch", range(6))
def test_no_bound_is_above_an_exhaustive_optimum(batch: int) -> None:
    faults: list[str] = []
    for number in range(60 * batch, 60 * (batch + 1)):
        random = Random(f"exact bounds {number}")
        graph = wide_graph(random)
        faults += [f"{number}: {fault}" for fault in false_bounds(graph, exact_budget(random, graph))]
    assert not faults


HARD = Path(__file__).parents[2] / "hard_graphs"
NEAR = {
    "seconds-below-the-backends-tolerance": 1099513726149,
    "bound-within-the-backends-tolerance": 6291666,
}
"""A second is a millionth of their time: HiGHS called an answer that took a second too much the best."""


def refuted(name: str, budget: int) -> bool:
    graph = load_graph(HARD / f"{name}.json")
    found = registry.solve("search", Problem(graph, budget), 0.5, bound_seconds=0)
    return free_order_bound(graph, budget, 5.0).bound.seconds > found.figures.time


@pytest.mark.parametrize("name", NEAR)
def test_what_a_backend_discards_is_not_taken_for_a_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a mutant, whose costs are parts of the whole time, is seen."""
    assert not refuted(name, NEAR[name])
    monkeypatch.setattr("memplan.solvers.milp.scaling._cost_exponent", lambda _cost, _program: 0)
    monkeypatch.setattr(highs, "bound_below", lambda _program, bound: bound)
    assert refuted(name, NEAR[name])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 30), st.integers(-300, 300))
def test_units_of_bytes_and_seconds_change_no_bound(seed: int, bytes_: int, seconds: int) -> None:
    """Bytes doubled so often, and seconds: the bound is the same number of the new seconds, nearly."""
    random = Random(seed)
    graph = wide_graph(random)
    budget = exact_budget(random, graph)
    if graph.tensors.bytes.max(initial=0) > 2**20 or graph.operations.workspace.max(initial=0) > 2**20:
        bytes_ = 0
    other = scaled_graph(graph, 2**bytes_, 2.0**seconds)
    for bound_of in (residency_bound, free_order_bound):
        bound = bound_of(graph, budget).bound.seconds
        same = bound_of(other, budget * 2**bytes_).bound.seconds
        assert same == pytest.approx(bound * 2.0**seconds, rel=1e-5)


def scaled_graph(graph: Graph, bytes_: int, seconds: float) -> Graph:
    operations = graph.operations
    modes = {
        operation: tuple(
            replace(mode, time=mode.time * seconds, workspace=mode.workspace * bytes_) for mode in row
        )
        for operation, row in operations.modes.items()
    }
    return replace(
        graph,
        tensors=replace(graph.tensors, bytes=graph.tensors.bytes * bytes_),
        operations=replace(
            operations,
            time=operations.time * seconds,
            workspace=operations.workspace * bytes_,
            modes=modes,
        ),
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_the_bound_of_more_memory_is_not_above_the_optimum_of_less(seed: int) -> None:
    random = Random(seed)
    graph = wide_graph(random)
    low, high = minimum_memory(graph), baseline(graph).peak
    budgets = sorted({low, high, *(exact_budget(random, graph) for _ in range(2))})
    for less, more in combinations(budgets, 2):
        best = optimal_time(graph, less)
        assert best is None or free_order_bound(graph, more).bound.seconds <= best


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_a_programs_bound_holds_in_exact_arithmetic(seed: int) -> None:
    """Any prices give a bound: it is compared with the same right side in fractions, without rounding."""
    random = np.random.default_rng(seed)
    program = wide_program(random)
    prices = random.normal(size=len(program.row_lower)) * 10.0 ** random.integers(-9, 10)
    found = safe_bounds._priced(program, program.cost, prices)
    assert Fraction(found) <= exactly_priced(program, prices)


def wide_program(random: np.random.Generator) -> Program:
    model = Model()
    columns = [model.column(upper=float(random.uniform(0, 4)), cost=magnitude(random)) for _ in range(6)]
    for _row in range(5):
        model.row([(column, magnitude(random)) for column in columns], lower=magnitude(random))
    return model.program()


def magnitude(random: np.random.Generator) -> float:
    return float(random.normal() * 10.0 ** random.integers(-6, 7))


def exactly_priced(program: Program, prices: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Fraction:
    reduced = [Fraction(cost) for cost in program.cost.tolist()]
    total = Fraction(0)
    for row, price in enumerate(prices.tolist()):
        limit = float(program.row_lower[row] if price > 0 else program.row_upper[row])
        if limit in (inf, -inf):
            continue
        total += Fraction(price) * Fraction(limit)
        for entry in range(program.start[row], program.start[row + 1]):
            reduced[program.columns[entry]] -= Fraction(float(program.values[entry])) * Fraction(price)
    for cost, low, high in zip(reduced, program.lower.tolist(), program.upper.tolist(), strict=True):
        total += min(cost * Fraction(low), cost * Fraction(high))
    return total


def test_a_bound_with_integers_is_lowered_by_the_backends_tolerance() -> None:
    model = Model()
    model.row([(model.binary(cost=1.0), 1.0), (model.binary(cost=1e-9), 1.0)], lower=1.0)
    fit = scaled(model.program())
    result = fit.result(highs.solve(fit.program, Settings(), None, {}, lambda _progress: None))
    assert result.status is MilpStatus.OPTIMAL
    assert result.bound <= 1e-9
    assert result.objective == pytest.approx(1e-9)
    assert bound_below(fit.program, inf) == inf
    assert bound_below(fit.program, 1.0) < 1.0


@pytest.mark.scripts
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 159), st.integers(0, 40), st.integers(-60, 60))
def test_units_change_no_bound_with_transfers(seed: int, bytes_: int, seconds: int) -> None:
    case = small_case(seed)
    links = case.machine.links
    assert links.d2h
    assert links.h2d
    rates = [2.0 ** (bytes_ - seconds) * link.rate for link in (links.d2h, links.h2d)]
    machine = Machine(links=Links(*rates))
    plain = Machine(links=Links(links.d2h.rate, links.h2d.rate))
    graph = scaled_graph(case.graph, 2**bytes_, 2.0**seconds)
    for order in ("file", "any"):
        bound = offload_bound(case.graph, plain, case.budget, 5.0, order=order).seconds
        same = offload_bound(graph, machine, case.budget * 2**bytes_, 5.0, order=order).seconds
        assert same == pytest.approx(bound * 2.0**seconds, rel=1e-4)


def test_a_linear_programs_bound_is_true_for_any_magnitude() -> None:
    """Bytes beside terabytes: the program has coefficients of 1e-12, and one answer, of cost 1."""
    model = Model()
    wide, narrow = model.column(cost=1.0), model.column(cost=1e-12)
    model.row([(wide, 1.0), (narrow, 2.0**-40)], lower=1.0)
    assert relaxed(model.program()).bound <= 1.0
