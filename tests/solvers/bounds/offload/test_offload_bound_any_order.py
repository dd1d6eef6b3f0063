"""The offloading bound for any order: never above a schedule, nor above the bound of the file's order."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest
from exact_offload import optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.order import in_order
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Initial, Schedule, compute, delete, prefetch
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.lower_bounds import prove
from memplan.solvers.bounds.offload import stocks
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from memplan.solvers.bounds.offload.program import offload_program
from memplan.solvers.bounds.offload.windows import START
from memplan.solvers.bounds.residency.order import BEFORE, any_order, predecessors
from memplan.solvers.milp.safe_bounds import relaxed
from memplan.solvers.problem import Bound, Problem
from reordered import random_order
from small_offload import small_case
from solver_cases import in_file_order
from strategies import Case, random_case

ABOVE = 1 + 1e-7


def any_bound(graph: Graph, machine: Machine, budget: int) -> float:
    bound = offload_bound(graph, machine, budget, order="any")
    assert bound.general
    return bound.seconds


@pytest.mark.sampled(18)
@pytest.mark.parametrize("seed", range(0, 160, 3))
def test_no_order_is_faster_than_the_bound(seed: int) -> None:
    """The file's order and two others, searched exhaustively."""
    case, random = small_case(seed), Random(seed)
    bound = any_bound(case.graph, case.machine, case.budget)
    orders = [list(range(len(case.graph.operations))), *(random_order(random, case.graph) for _ in range(2))]
    recompute = seed in (3, 9, 27)
    for order in orders:
        graph = in_order(case.graph, order)
        best = optimum(graph, case.machine, case.budget, recompute=recompute, states=600)
        assert bound <= best.period * ABOVE


def times_of(case: Case) -> dict[int, float]:
    """Bytes -> seconds of its schedule within these; none where it is not legal, or has not both links."""
    if case.machine is None or not (case.machine.links.d2h and case.machine.links.h2d):
        return {}
    try:
        free = replace(case.machine, device_capacity=None)
        peaks = simulate(case.graph, case.schedule, machine=free).figures
        return {
            budget: simulate(case.graph, case.schedule, budget=budget, machine=free).figures.time
            for budget in {peaks.peak, peaks.least_budget}
        }
    except InvalidScheduleError:
        return {}


@pytest.mark.scripts
@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_no_random_schedule_is_faster_than_the_bounds(random: Random) -> None:
    """Any order, recomputations, modes, several contributions, disks; links with latencies."""
    case = random_case(random, 9)
    for budget, time in times_of(case).items():
        assert case.machine is not None
        machine = replace(case.machine, device_capacity=None)
        assert any_bound(case.graph, machine, budget) <= time * ABOVE
        if in_file_order(case.schedule):
            assert offload_bound(case.graph, machine, budget).seconds <= time * ABOVE


def marks_of(graph: Graph) -> list[int]:
    """The turn's start, and both ends of operations on a chain of dependencies."""
    moment, found = any_order(predecessors(graph)), list[int]()
    for o in range(len(graph.operations)):
        if not found or moment(o).side[found[-1]] == BEFORE:
            found.append(o)
    able = [o for o in found if not any(mode.on_host for mode in graph.operations.modes.get(o, ()))]
    return [START, *(mark for o in able for mark in (2 * o, 2 * o + 1))]


@pytest.mark.parametrize("seed", range(60))
def test_at_the_same_moments_any_order_is_not_above_the_files(seed: int) -> None:
    case = small_case(seed)
    marks = marks_of(case.graph)

    def bound(order: str) -> float:
        program = offload_program(case.graph, case.machine, case.budget, marks, order)  # type: ignore[arg-type]
        return relaxed(program.model.program()).bound * program.unit

    assert bound("any") <= bound("file") * ABOVE


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_where_one_order_is_possible_both_are_the_same(seed: int) -> None:
    random = Random(seed)
    graph = chain(random.randint(3, 6), seed=seed, parameters=True)
    machine = Machine(links=Links(d2h=40.0, h2d=60.0))
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    budget = low + (high - low) // 3
    fixed = offload_bound(graph, machine, budget).seconds
    assert any_bound(graph, machine, budget) == pytest.approx(fixed, rel=1e-6)


@pytest.mark.scripts
def test_the_bound_closes_much_of_the_gap() -> None:
    """That between the time of all operations and the file's order's bound: other orders may be faster."""
    closed: list[float] = []
    for seed in range(0, 160, 2):
        case = small_case(seed)
        trivial = time_bound(case.graph)
        fixed = offload_bound(case.graph, case.machine, case.budget).seconds
        if trivial * 1.01 < fixed < inf:
            closed.append((any_bound(case.graph, case.machine, case.budget) - trivial) / (fixed - trivial))
    assert len(closed) >= 25
    assert sum(closed) / len(closed) >= 0.45


def test_weights_that_must_come_and_go() -> None:
    """Three weights of 4 B, changed once a turn, on 5 B: two at least go down and come up."""
    draft = Draft("weights")
    out = draft.tensor("out", 0)
    before = list[int]()
    for k in range(3):
        w, mark = draft.tensor(f"w{k}", 4, Kind.PARAMETER), draft.tensor(f"m{k}", 0)
        draft.operation(f"F{k}", time=1, reads=[w, *before], writes=[mark])
        draft.operation(f"U{k}", time=1, reads=[mark], mutates=[w], phase=Phase.UPDATE, recompute=False)
        before = [mark]
    draft.operation("last", time=1, reads=before, writes=[out], recompute=False)
    graph, machine = draft.graph([out]), Machine(links=Links(d2h=0.5, h2d=1))
    bound = any_bound(graph, machine, 5)
    assert 2 * 4 / 0.5 <= bound <= optimum(graph, machine, 5).period * ABOVE


def test_work_is_shared_between_device_and_cpu() -> None:
    """Updates of 3 s there or 6 s on the CPU: 8 of them beside each other take 16 s, not the 0 of neither."""
    draft = Draft("updates")
    for k in range(8):
        w, mark = draft.tensor(f"w{k}", 1, Kind.PARAMETER), draft.tensor(f"m{k}", 0)
        draft.operation(f"F{k}", time=0, reads=[w], writes=[mark])
        host = Mode("host", 6, 0, (), on_host=True)
        draft.operation(
            f"U{k}", time=3, reads=[mark], mutates=[w], phase=Phase.UPDATE, recompute=False, modes=[host]
        )
    graph = draft.graph()
    assert time_bound(graph) == 0.0
    assert any_bound(graph, Machine(links=Links(d2h=1e6, h2d=1e6)), 100) == pytest.approx(16.0)


def test_a_race_is_told_rising_bounds_until_it_is_over() -> None:
    case = small_case(28)
    problem, reported = Problem(case.graph, case.budget, case.machine), list[Bound]()
    prove(problem, reported.append, 10.0, lambda: False)
    assert all(bound.general for bound in reported)
    assert [bound.seconds for bound in reported] == sorted(bound.seconds for bound in reported)
    assert reported[-1].seconds == any_bound(case.graph, case.machine, case.budget) > reported[0].seconds

    few = list[Bound]()
    prove(Problem(case.graph, case.budget, case.machine), few.append, 10.0, lambda: len(few) == 2)
    assert few == reported[:2]


def test_a_contribution_dropped_before_the_next_is_made() -> None:
    """p's part of x is made again after b only, not for q's: the bound of the file's order is the optimum. In
    another order nothing runs twice."""
    draft = Draft("parts")
    x, y, z, out = (draft.tensor(name, size) for name, size in (("x", 6), ("y", 0), ("z", 0), ("out", 0)))
    p = draft.operation("p", time=10, writes=[x])
    n = draft.operation("n", time=100, writes=[z], workspace=6)
    q = draft.operation("q", time=1, reads=[z], writes=[x])
    b = draft.operation("b", time=1, reads=[z], writes=[y], workspace=6)
    c = draft.operation("c", time=1, reads=[x, y], writes=[out])
    graph, machine = draft.graph([out]), Machine(links=Links(d2h=0.01, h2d=0.01))
    filed = [compute(p), delete(x), compute(n), compute(q), delete(x), *map(compute, (b, p, q, c))]
    other = list(map(compute, (n, b, p, q, c)))
    filed_time, other_time = (
        simulate(graph, Schedule.of(steps), budget=6, machine=machine).figures.time
        for steps in (filed, other)
    )
    assert (filed_time, other_time) == (124, 113)
    assert offload_bound(graph, machine, 6).seconds == pytest.approx(filed_time, rel=1e-6)
    assert any_bound(graph, machine, 6) == pytest.approx(other_time)


def test_what_the_cpu_makes_lies_in_host_memory() -> None:
    draft = Draft("made below")
    x, z, out = draft.tensor("x", 6), draft.tensor("z", 0), draft.tensor("out", 0)
    p = draft.operation("p", time=10, writes=[x], modes=[Mode("host", 1, 0, (x,), on_host=True)])
    n = draft.operation("n", time=100, writes=[z], workspace=6)
    c = draft.operation("c", time=1, reads=[x, z], writes=[out])
    graph, machine = draft.graph([out]), Machine(links=Links(d2h=0.01, h2d=100))
    steps = [compute(p, 1), compute(n), prefetch(x), compute(c)]
    time = simulate(graph, Schedule.of(steps), budget=6, machine=machine).figures.time
    assert time == pytest.approx(101.06)
    assert offload_bound(graph, machine, 6).seconds <= time
    assert any_bound(graph, machine, 6) <= time


def test_a_bound_too_strong_is_seen_by_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: what changes is never fresh below."""
    cases = [small_case(seed) for seed in range(0, 60, 4)]
    optima = [optimum(case.graph, case.machine, case.budget, states=1_500).period for case in cases]

    def faults() -> int:
        bounds = [any_bound(case.graph, case.machine, case.budget) for case in cases]
        return sum(bound > best * ABOVE for bound, best in zip(bounds, optima, strict=True))

    assert faults() == 0
    rows = stocks.StockRows._persistent_rows  # pyright: ignore[reportPrivateUsage]

    def all_stays(self: stocks.StockRows, x: int, s: int) -> None:
        rows(self, x, s)
        self.columns.require(self.columns.is_there(x, s) >= 1.0)

    monkeypatch.setattr(stocks.StockRows, "_persistent_rows", all_stays)
    assert faults() > 0


def test_reads_of_host_memory() -> None:
    """A weight that nothing changes lies there without a copy: read there, 2 s more, or copied up, 6 s."""
    draft = Draft("frozen")
    w, out = draft.tensor("w", 6, Kind.PARAMETER), draft.tensor("out", 0)
    large = draft.tensor("large", 6)
    a = draft.operation("a", time=1, writes=[large])
    b = draft.operation("b", time=1, reads=[large, w], writes=[out], modes=[Mode("dha", 3, 0, (out,), (w,))])
    graph, machine = draft.graph([out]), Machine(links=Links(d2h=0.001, h2d=1))
    steps = [compute(a), compute(b, 1)]
    schedule = Schedule.of(steps, Initial(frozenset([w]), frozenset(), frozenset()))
    time = simulate(graph, schedule, budget=6, machine=machine).figures.time
    assert time == 4
    assert time_bound(graph) < any_bound(graph, machine, 6) <= time * ABOVE
