"""The residency bounds: never above what some schedule reaches, and often equal to it."""

from __future__ import annotations

import os
import signal
import threading
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import pytest
from ctrl_c import handled
from exact import optimal_time
from hypothesis import given, settings
from memplan.graphs.draft import Draft
from memplan.graphs.files.files import load_graph
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Mode
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds import lower_bounds
from memplan.solvers.bounds.residency import program as residency_program
from memplan.solvers.bounds.residency import windows
from memplan.solvers.bounds.residency.facts import Facts
from memplan.solvers.bounds.residency.order import AFTER, BEFORE, OPEN, any_order, file_order, predecessors
from memplan.solvers.bounds.residency.residency import free_order_bound, residency_bound, residency_of
from memplan.solvers.bounds.residency.schedule import residency_schedule
from memplan.solvers.bounds.residency.search import ResidencyBoundSearch
from memplan.solvers.milp.model import Model
from memplan.solvers.milp.safe_bounds import relaxed
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from memplan.solvers.stages.slots import variants_of
from small_graphs import small_graphs
from stages import least_time

ROOM = 1 + 1e-9


def steps(graph: Graph, most: int) -> range:
    low, high = minimum_memory(graph) - 1, baseline(graph).peak
    return range(low, high + 1, max(1, (high - low) // most))


@pytest.mark.scripts
@settings(max_examples=80)
@given(small_graphs())
def test_the_files_order_is_never_faster_than_its_bound(graph: Graph) -> None:
    """Shared contributions, several outputs, changes in place, modes, workspaces."""
    for budget in steps(graph, 6):
        best, bound = least_time(graph, budget), residency_bound(graph, budget).bound
        assert bound.order == "file"
        assert best is None or bound.seconds <= best * ROOM


@pytest.mark.scripts
@settings(max_examples=60)
@given(small_graphs())
def test_no_schedule_is_faster_than_the_bound_for_any_order(graph: Graph) -> None:
    for budget in steps(graph, 5):
        best, fixed = optimal_time(graph, budget), residency_bound(graph, budget)
        free = free_order_bound(graph, budget, moments=fixed.moments).bound
        assert free.order == "any"
        assert best is None or free.seconds <= best * ROOM
        assert time_bound(graph) * (1 - 1e-9) <= free.seconds


@pytest.mark.scripts
@settings(max_examples=30)
@given(small_graphs())
def test_bounds_with_intervals_between_moments_hold_too(graph: Graph) -> None:
    solved = ResidencyBoundSearch._solved

    def at_once(self: ResidencyBoundSearch, seconds: float) -> object:
        self.nested = True
        return solved(self, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResidencyBoundSearch, "_solved", at_once)
        for budget in steps(graph, 4):
            fixed = residency_bound(graph, budget)
            free = free_order_bound(graph, budget, moments=fixed.moments)
            least, best = least_time(graph, budget), optimal_time(graph, budget)
            assert least is None or fixed.bound.seconds <= least * ROOM
            assert best is None or free.bound.seconds <= best * ROOM


def test_intervals_between_moments_raise_the_bound_in_fractions() -> None:
    graph = chain(12)
    min_memory, count = minimum_memory(graph), len(graph.operations)
    budget = min_memory + (baseline(graph).peak - min_memory) // 10
    facts, moment = Facts(graph), file_order(graph)
    every = range(count // 3, count, count // 9)
    moments = [moment(o) for o in every if facts.least_bytes(o) <= budget]
    bounds: list[float] = []
    for nested in (False, True):
        program = windows.residency_program(facts, budget, moments, windows=True, nested=nested).program
        bounds.append(relaxed(program).bound)
    assert bounds[1] > bounds[0] * 1.01


@pytest.mark.scripts
def test_a_bound_too_strong_is_seen_by_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mutants: a moment's own operation counted twice; more needed than (3) says."""
    graph = unet(1)
    optima = [(budget, optimal_time(graph, budget)) for budget in steps(graph, 6)]
    known = [(budget, best) for budget, best in optima if best is not None]

    def faults() -> int:
        return sum(residency_bound(graph, budget).bound.seconds > best * ROOM for budget, best in known)

    assert len(known) >= 4
    assert faults() == 0
    with monkeypatch.context() as patch:
        least = Facts.least_bytes
        patch.setattr(Facts, "least_bytes", lambda self, o: 2 * least(self, o))
        assert faults() > 0
    needs = residency_program.MomentColumns.needs

    def all_stays(self: residency_program.MomentColumns) -> None:
        needs(self)
        for column in self.kept.values():
            self.model.row([(column, 1.0)], lower=1.0)

    monkeypatch.setattr(residency_program.MomentColumns, "needs", all_stays)
    assert faults() > 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "percent", "overhead"),
    [
        ("fcn8", 90, 0.0294),
        ("fcn8", 80, 0.1361),
        ("fcn8", 70, 0.8915),
        ("unet", 80, 1.98),
        ("unet", 60, 4.45),
        ("unet", 50, 6.97),
        ("segnet", 60, 0.423),
        ("segnet", 50, 40.66),
    ],
)
def test_published_optima_are_proved_in_any_order(
    public: Path, name: str, percent: int, overhead: float
) -> None:
    """Optima of the file's order by CP-SAT (docs/instances.md): no other order is faster."""
    graph = load_graph(public / f"{name}.json")
    plain = baseline(graph)
    budget = plain.peak * percent // 100
    fixed = residency_schedule(graph, budget)
    assert fixed.schedule is not None
    figures = simulate(graph, fixed.schedule.schedule, budget=budget).figures
    free = free_order_bound(graph, budget, goal=figures.time, moments=fixed.moments).bound
    for time in (figures.time, fixed.bound.seconds, free.seconds):
        assert 100 * (time / plain.time - 1) == pytest.approx(overhead, abs=0.006)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("seed", "percent", "overhead"), [(0, 90, 0.8942), (0, 80, 4.6562), (1, 90, 1.5675), (1, 80, 4.1509)]
)
def test_never_above_the_optima_of_random_layers(seed: int, percent: int, overhead: float) -> None:
    """Optima of the file's order: checkmate and moccasin proved the same."""
    graph = layered(60, seed=seed)
    plain = baseline(graph)
    bound = residency_bound(graph, plain.peak * percent // 100, time_limit=3).bound
    assert 0.5 * overhead < 100 * (bound.seconds / plain.time - 1) < overhead + 1e-4


def test_picture_a_skip_that_does_not_fit() -> None:
    """
    a ─▶ x (4) ─▶ b ─▶ y (4) ─▶ c ─▶ z (4) ─▶ d ◀─ x

    While b runs x is there, while c runs y and z are: within 8 bytes x goes, and a runs again. One byte more
    does not help, four do.
    """
    draft = Draft("skip")
    x, y, z, end = (draft.tensor(name, size) for name, size in (("x", 4), ("y", 4), ("z", 4), ("end", 0)))
    draft.operation("a", time=3, writes=[x])
    draft.operation("b", time=1, reads=[x], writes=[y])
    draft.operation("c", time=1, reads=[y], writes=[z])
    draft.operation("d", time=1, reads=[x, z], writes=[end])
    graph = draft.graph()
    for budget, time in ((7, inf), (8, 9), (11, 9), (12, 6)):
        for bound in (residency_bound(graph, budget).bound, free_order_bound(graph, budget).bound):
            assert bound.seconds == pytest.approx(time)


def test_what_must_run_before_and_after() -> None:
    """a ─▶ b and c apart, then d reads both; b changes w in place, which e reads, behind it in the file."""
    draft = Draft("sides")
    w = draft.tensor("w", 1, Kind.PARAMETER)
    x, y, z = (draft.tensor(name, 1) for name in "xyz")
    draft.operation("a", time=1, writes=[x])
    draft.operation("b", time=1, reads=[x], writes=[y], mutates=[w])
    draft.operation("c", time=1, reads=[x], writes=[z])
    draft.operation("d", time=1, reads=[y, z])
    draft.operation("e", time=1, reads=[w])
    before = predecessors(draft.graph())
    assert before.lists() == [[], [0], [0], [1, 2], [1]]
    assert list(any_order(before)(1).side) == [BEFORE, BEFORE, OPEN, AFTER, AFTER]
    assert list(any_order(before)(3).side) == [BEFORE, BEFORE, BEFORE, BEFORE, OPEN]


@settings(max_examples=60)
@given(small_graphs())
def test_facts_are_those_of_the_graph(graph: Graph) -> None:
    facts, operations = Facts(graph), range(len(graph.operations))
    before: list[set[int]] = [set() for _ in operations]
    changes = {(o, x) for o in operations for x in graph.operation(o).mutates}
    for o in operations:
        one, variants = graph.operation(o), variants_of(graph, o)
        surely = set(one.writes).intersection(*(variant.writes for variant in variants))
        moving = {x for x in (*one.reads, *one.mutates) if not graph.resident[x]}
        assert facts.touched(o) == moving | surely
        sizes = sum(int(graph.tensors.bytes[x]) for x in moving | surely)
        assert facts.least_bytes(o) == facts.always + min(variant.workspace for variant in variants) + sizes
        before[o].update(p for p in operations if {*graph.operation(p).writes} & {*one.reads, *one.mutates})
        for change, x in changes:
            if change != o and x in (*one.reads, *one.writes, *one.mutates):
                before[max(o, change)].add(min(o, change))
    random = [o for o in operations if graph.operation(o).random]
    for earlier, later in pairwise(random):
        before[later].add(earlier)
    assert facts.predecessors.lists() == [sorted(row) for row in before]


def test_prices_of_any_kind_give_a_true_bound() -> None:
    """min x + 2y, x + y ≥ 1: 1. Cut short there is no bound; a contradiction is one of ∞."""
    model = Model()
    x, y = model.column(cost=1.0), model.column(cost=2.0)
    model.row([(x, 1.0), (y, 1.0)], lower=1.0)
    answer = relaxed(model.program())
    assert answer.bound == pytest.approx(1.0, abs=1e-6)
    assert answer.bound <= 1.0
    assert answer.x is not None
    assert np.allclose(answer.x, [1.0, 0.0], atol=1e-6)
    model.row([(x, 1.0), (y, 1.0)], lower=2.5)
    assert relaxed(model.program()).bound == inf


def test_a_time_limit_gives_a_lower_bound_sooner() -> None:
    graph = chain(60, seed=2)
    budget = baseline(graph).peak * 6 // 10
    short = free_order_bound(graph, budget, time_limit=1.0)
    assert not short.finished
    assert time_bound(graph) <= short.bound.seconds
    assert free_order_bound(graph, budget, time_limit=0.0).bound.seconds == time_bound(graph)


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
@pytest.mark.parametrize("later", [0.0, 0.7], ids=["between programs", "while one is solved"])
def test_ctrl_c_leaves_the_bound_so_far(later: float) -> None:
    """The whole bound takes a minute: the signal comes when it first rises, or soon after."""
    graph, sent = chain(60, seed=1), list[threading.Timer]()

    def interrupt(_extra: float) -> None:
        if not sent:
            sent.append(threading.Timer(later, os.kill, (os.getpid(), signal.SIGINT)))
            sent[0].run() if later == 0.0 else sent[0].start()

    search = ResidencyBoundSearch(graph, baseline(graph).peak * 45 // 100, "file", inf, tell=interrupt)
    with handled():
        found = residency_of(search, "file")
    assert found.interrupted
    assert not found.finished
    assert found.bound.seconds > time_bound(graph)


def test_ctrl_c_between_bounds_leaves_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a solution with a schedule it costs no more than the bounds that are not computed yet."""
    graph, calls = chain(8), list[str]()

    def interrupted(_problem: Problem, order: str, *_rest: object) -> None:
        calls.append(order)
        raise KeyboardInterrupt

    monkeypatch.setattr(lower_bounds, "_residency", interrupted)
    with handled():
        found = registry.solve("rotor", Problem(graph, baseline(graph).peak * 6 // 10))
    assert calls == ["file"]
    assert found.lower_bound == time_bound(graph)
    assert not found.notes


def test_links_leave_only_the_time_of_all_operations_for_every_schedule() -> None:
    graph = chain(6, seed=3)
    budget = baseline(graph).peak * 3 // 4
    bare, linked = (
        registry.solve("rotor", Problem(graph, budget, Machine(links=links)))
        for links in (Links(), Links(d2h=1e9, h2d=1e9))
    )
    assert bare.lower_bound is not None
    assert bare.lower_bound > time_bound(graph) == linked.lower_bound
    assert [(b.order, b.transfers) for b in linked.bounds][:2] == [("any", True), ("any", False)]
    assert linked.bounds[1].seconds == pytest.approx(bare.lower_bound)


def test_a_way_to_use_the_host_leaves_it_too() -> None:
    draft = Draft("host")
    w, x, y = draft.tensor("w", 4, Kind.PARAMETER), draft.tensor("x", 4), draft.tensor("y", 4)
    draft.operation("a", time=2, reads=[w], writes=[x], modes=[Mode("there", 2, 0, (x,), reads_host=(w,))])
    draft.operation("b", time=1, reads=[w], writes=[y])
    draft.operation("c", time=1, reads=[x, y])
    graph = draft.graph()
    found = registry.solve("store-all", Problem(graph, 12))
    assert [bound.seconds for bound in found.bounds] == [time_bound(graph)]


def test_what_equals_the_bound_is_optimal() -> None:
    """chen-sqrt itself claims nothing."""
    graph = chain(4, uniform=True, parameters=False)
    budget = baseline(graph).peak
    assert registry.solve("chen-sqrt", Problem(graph, budget)).status == "optimal"


def test_graphs_without_a_loss_are_bounded_in_the_files_order() -> None:
    graph = layered(60, seed=4)
    budget = baseline(graph).peak * 8 // 10
    fixed = residency_bound(graph, budget, time_limit=2)
    assert fixed.bound.seconds > time_bound(graph)
    free = free_order_bound(graph, budget, time_limit=2, moments=fixed.moments)
    assert time_bound(graph) <= free.bound.seconds <= fixed.bound.seconds * ROOM
