"""Idle time by windows of the links: never above a schedule, exact where it can be worked out."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
from exact_offload import optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_traces.traces import Trace, kernel_trace
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Link, Links, Machine, Memory
from memplan.planner.baseline import baseline
from memplan.planner.bounds import time_bound
from memplan.planner.residency.lifetimes import find_lifetimes, position_of
from memplan.planner.residency.prefetch_placement import place_prefetches
from memplan.planner.residency.residency import Residency
from memplan.planner.schedule.schedule import Initial, Schedule, compute, delete, offload, prefetch
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.offload.link_windows import link_bound
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from small_offload import small_case
from strategies import with_measured

SEEDS = range(90)
ABOVE = 1 + 1e-7


def run_once(graph: Graph) -> Graph:
    """The same, where nothing may run again, nor in another mode."""
    operations = graph.operations
    return replace(
        graph, operations=replace(operations, recompute=np.zeros_like(operations.recompute), modes={})
    )


@pytest.mark.scripts
def test_no_bound_is_above_the_least_period_and_many_are_near() -> None:
    closed: list[float] = []
    for seed in SEEDS:
        case = small_case(seed)
        graph = run_once(case.graph)
        best = optimum(graph, case.machine, case.budget, states=600)
        bound, trivial = link_bound(graph, case.machine, case.budget), time_bound(graph)
        assert bound <= best.period * ABOVE
        if best.proven and trivial * 1.01 < best.period < inf:
            closed.append((bound - trivial) / (best.period - trivial))
    assert len(closed) >= 15
    assert sum(closed) / len(closed) >= 0.3


@pytest.mark.sampled(13)
@pytest.mark.parametrize("seed", range(40))
def test_no_bound_is_above_the_least_period_with_measured_copies(seed: int) -> None:
    """At some sizes much faster than the rate, at others much slower; both bounds of offloading."""
    case, random = small_case(seed), Random(seed)
    links = case.machine.links
    machine = replace(case.machine, links=with_measured(random, links))
    best = optimum(case.graph, machine, case.budget, states=600)
    assert offload_bound(case.graph, machine, case.budget).seconds <= best.period * ABOVE
    once = run_once(case.graph)
    assert (
        link_bound(once, machine, case.budget)
        <= optimum(once, machine, case.budget, states=600).period * ABOVE
    )


def one_peak(seconds: float) -> Graph:
    """x, 6 B, lies idle while `wide`, 9 B, is there for a second."""
    draft = Draft("peak")
    x, wide = draft.tensor("x", 6), draft.tensor("wide", 9)
    draft.operation("x", time=1, writes=[x], recompute=False)
    draft.operation("beside", time=seconds, recompute=False)
    draft.operation("wide", time=1, writes=[wide], recompute=False)
    draft.operation("between", time=seconds, recompute=False)
    draft.operation("last", time=1, reads=[x], recompute=False)
    return draft.graph()


@pytest.mark.parametrize(("seconds", "idle"), [(0.0, 5.0), (1.0, 3.0), (2.5, 0.5), (4.0, 0.0)])
def test_idle_of_two_windows_adds_up(seconds: float, idle: float) -> None:
    """On 9 B x goes down, 6 / 2 s, beside `beside` and comes up, 6 / 3 s, beside `between`."""
    graph, machine = one_peak(seconds), Machine(links=Links(d2h=2, h2d=3))
    bound = link_bound(graph, machine, 9)
    assert bound == pytest.approx(3 + 2 * seconds + idle)
    assert optimum(graph, machine, 9).period == pytest.approx(bound)
    assert link_bound(graph, machine, 15) == 3 + 2 * seconds


def test_a_weight_crosses_the_turn_s_end() -> None:
    """w, 6 B, changes last; on 6 B it goes down, 6 / 2 s, before `large` and comes up, 6 / 3 s, after it."""
    draft = Draft("one")
    w, large, mark = draft.tensor("w", 6, Kind.PARAMETER), draft.tensor("large", 6), draft.tensor("mark", 0)
    draft.operation("large", time=5, writes=[large], recompute=False)
    draft.operation("last", time=1, reads=[large], writes=[mark], recompute=False)
    draft.operation("U", time=1, reads=[mark], mutates=[w], phase=Phase.UPDATE, recompute=False)
    assert link_bound(draft.graph(), Machine(links=Links(d2h=2, h2d=3)), 6) == pytest.approx(7 + 3 + 2)


def test_the_disk_takes_what_the_host_has_no_room_for() -> None:
    """3 of 6 B on the host; 3 B pass the disk: down, 3 / 1 s, beside `beside`, and up once in a turn."""
    links = Links(d2h=100, h2d=100, disk_read=1, disk_write=1)
    graph = one_peak(1.0)
    assert link_bound(graph, Machine(host_capacity=3, links=links), 9) == pytest.approx(5 + 2)
    slow = replace(links, disk_read=Link(0.1))
    assert link_bound(graph, Machine(host_capacity=3, links=slow), 9) == pytest.approx(3 / 0.1)
    assert link_bound(graph, Machine(host_capacity=3, links=Links(d2h=1, h2d=1)), 9) == inf


def test_a_copy_from_the_disk_may_come_before_the_peak() -> None:
    """`a` has waited for the copy of x: y takes its place on the host while `wide` runs, and before it."""
    draft = Draft("early")
    x, y = (draft.tensor(name, 6, Kind.PARAMETER) for name in "xy")
    draft.operation("wide", time=5, workspace=12, recompute=False)
    draft.operation("a", time=1, reads=[x], recompute=False)
    draft.operation("b", time=1, reads=[y], recompute=False)
    graph = draft.graph()
    links = Links(d2h=1000, h2d=1000, disk_read=0.5, disk_write=0.5)
    machine, below = Machine(host_capacity=6, links=links), Memory.HOST
    steps = [compute(0), prefetch(x), compute(1), delete(x, below), prefetch(y, below), prefetch(y)]
    steps += [compute(2), delete(y, below), offload(x), delete(x), delete(y)]
    schedule = Schedule.of(steps, Initial(frozenset([x]), frozenset([y]), frozenset()))
    assert simulate(graph, schedule, budget=12, machine=machine).figures.time == 12
    assert link_bound(graph, machine, 12) == 12


def test_what_nothing_touches_may_lie_on_the_disk() -> None:
    draft = Draft("idle")
    x, _state = draft.tensor("x", 5, Kind.INPUT), draft.tensor("state", 5, Kind.OPTIMIZER_STATE)
    draft.operation("once", time=1, reads=[x], workspace=4, recompute=False)
    graph, machine = draft.graph(), Machine(host_capacity=0, links=Links(d2h=1, h2d=1))
    schedule = Schedule.of([compute(0)], Initial(frozenset(), frozenset([1]), frozenset()))
    assert simulate(graph, schedule, budget=9, machine=machine).figures.time == 1
    assert link_bound(graph, machine, 9) == 1


def test_less_time_only_makes_it_lower() -> None:
    """Asked at each moment of each origin; the windows seen till then still count."""
    graph, machine = one_peak(1.0), Machine(links=Links(d2h=2, h2d=3))

    def after(looks: int) -> float:
        left = iter([True] * looks)
        return link_bound(graph, machine, 9, lambda: next(left, False))

    bounds = [after(looks) for looks in range(12)]
    assert bounds == sorted(bounds)
    assert bounds[0] == time_bound(graph) < bounds[-1] == link_bound(graph, machine, 9)


@given(
    trace=st.builds(
        Trace,
        st.sampled_from(("transformer", "bottlenecks", "cells")),
        seed=st.integers(0, 999),
        kernels=st.integers(40, 160),
        shared=st.integers(0, 2),
        in_place=st.booleans(),
        states=st.integers(0, 2),
        reach=st.floats(0.1, 3.0),
        host=st.none() | st.floats(0.1, 0.5),
        disk=st.just(0.5),
    ),
    share=st.floats(0.3, 0.95),
    chance=st.randoms(use_true_random=False),
)
@settings(max_examples=15, deadline=None)
def test_no_random_migration_of_a_trace_is_faster(trace: Trace, share: float, chance: Random) -> None:
    graph = kernel_trace(trace)
    assert graph.machine is not None
    runs, budget = in_default_mode(range(len(graph.operations))), int(share * baseline(graph).peak)
    later = {True: [Memory.HOST], False: [Memory.HOST, Memory.DISK]}
    offloaded = {
        (lifetime.tensor, position_of(use.moment)): chance.choice(later[lifetime.persistent])
        for lifetime in find_lifetimes(graph, runs)
        for use in lifetime.uses
        if chance.random() < 1.3 - share
    }
    found = place_prefetches(graph, graph.machine, budget, Residency(runs, offloaded), (1.0, 3.0))
    if found:
        assert found[1].time >= link_bound(graph, graph.machine, budget) * (1 - 1e-9)


def test_where_something_may_run_again_it_is_the_time_of_all_operations() -> None:
    case = small_case(0)
    assert case.graph.operations.recompute.any()
    assert link_bound(case.graph, case.machine, case.budget) == time_bound(case.graph)
