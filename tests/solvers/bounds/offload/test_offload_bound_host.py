"""The offloading bound where host memory is small: never above a schedule, exact where that is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

import pytest
from exact_host import host_case, least_period
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Initial, Schedule, compute, delete, offload, prefetch
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.offload.columns import OffloadColumns
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from memplan.solvers.problem import OrderName
from small_offload import small_case
from solver_cases import in_file_order
from strategies import random_case

ABOVE = 1 + 1e-7
SEEDS = (1, 2, 4, 9, 13, 14, 15, 17, 18, 19, 20, 22, 23, 24, 30, 31, 32, 33, 34, 50, 54)
"""Half a second of search each; most up to 60 take one."""

ORDERS: tuple[OrderName, ...] = ("any", "file")


@pytest.mark.scripts
def test_no_schedule_is_faster_and_the_disk_counts() -> None:
    exact = raised = 0
    for seed in SEEDS:
        graph, machine, budget = host_case(Random(seed))
        best = least_period(graph, machine, budget)
        bounds = [offload_bound(graph, machine, budget, order=order).seconds for order in ORDERS]
        assert max(bounds) <= best * ABOVE
        exact += best < inf and bounds[0] * ABOVE >= best
        raised += offload_bound(graph, replace(machine, host_capacity=None), budget).seconds < bounds[0] < inf
    assert exact >= 8
    assert raised >= 2


def test_a_bound_too_strong_is_seen_by_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a byte of host memory."""
    cases = [host_case(Random(seed)) for seed in SEEDS[:8]]
    periods = [least_period(*case) for case in cases]
    monkeypatch.setattr(OffloadColumns, "_host_limit", lambda _self, _machine: 1)
    bounds = [offload_bound(*case, order="any").seconds for case in cases]
    assert any(bound > period * ABOVE for bound, period in zip(bounds, periods, strict=True))


@pytest.mark.scripts
@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_random_schedule_is_faster(random: Random) -> None:
    """On the least host memory, or the least pinned, that it is valid with."""
    case = random_case(random, 9)
    if case.machine is None or not (case.machine.links.d2h and case.machine.links.h2d):
        return
    machine = Machine(links=case.machine.links)
    try:
        figures = simulate(case.graph, case.schedule, machine=machine).figures
    except InvalidScheduleError:
        return
    for key, size in (("host_capacity", figures.host_peak), ("pinned", figures.least_pinned)):
        for less in range(3):
            limited = replace(machine, **{key: size - less})
            try:
                time = simulate(case.graph, case.schedule, budget=figures.peak, machine=limited).figures.time
            except InvalidScheduleError:
                break
            for order in ORDERS if in_file_order(case.schedule) else ORDERS[:1]:
                bound = offload_bound(case.graph, limited, figures.peak, order=order)
                assert bound.seconds <= time * ABOVE


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_less_host_memory_never_lowers_it_and_enough_changes_nothing(seed: int) -> None:
    case = small_case(seed)
    total = int(case.graph.tensors.bytes.sum())
    sizes = (None, total, total // 2, total // 4, 0)
    machines = [replace(case.machine, host_capacity=size) for size in sizes]
    bounds = [offload_bound(case.graph, machine, case.budget, order="any").seconds for machine in machines]
    assert bounds[0] == bounds[1]
    assert all(more >= less * (1 - 1e-6) for less, more in pairwise(bounds))


def one_peak() -> Graph:
    """x, 6 B, lies idle while `wide`, 9 B, runs; all in one order."""
    draft = Draft("peak")
    x, marks = draft.tensor("x", 6), [draft.tensor(f"m{k}", 0) for k in range(4)]
    draft.operation("x", time=1, writes=[x, marks[0]], recompute=False)
    draft.operation("beside", time=1, reads=[marks[0]], writes=[marks[1]], recompute=False)
    draft.operation("wide", time=1, reads=[marks[1]], writes=[marks[2]], workspace=9, recompute=False)
    draft.operation("between", time=1, reads=[marks[2]], writes=[marks[3]], recompute=False)
    draft.operation("last", time=1, reads=[x, marks[3]], recompute=False)
    return draft.graph()


@pytest.mark.parametrize("order", ORDERS)
def test_the_disk_takes_what_the_host_has_no_room_for(order: OrderName) -> None:
    """3 of 6 B on the host: 3 B are written, 3 / 1 s, beside `beside`, and read once a turn, 3 / 0.1 s."""
    graph, links = one_peak(), Links(d2h=100, h2d=100, disk_read=1, disk_write=1)

    def bound(links: Links, **limits: Any) -> float:
        return offload_bound(graph, Machine(links=links, **limits), 9, order=order).seconds

    assert bound(links, host_capacity=6) == pytest.approx(5)
    assert bound(links, host_capacity=3) == pytest.approx(5 + 2)
    slow = Links(d2h=100, h2d=100, disk_read=0.1, disk_write=1)
    assert bound(slow, host_capacity=3) == pytest.approx(3 / 0.1)
    alone = Links(d2h=100, h2d=100)
    assert bound(alone, host_capacity=5) == bound(alone, pinned=5) == inf
    assert bound(links, host_capacity=6, pinned=5) == pytest.approx(5)


def test_weights_that_nothing_changes() -> None:
    """One of two, 6 B, on the device, none on the host: the other is read from the disk in each turn."""
    draft = Draft("frozen")
    x, y = (draft.tensor(name, 6, Kind.PARAMETER) for name in "xy")
    mark = draft.tensor("mark", 0)
    draft.operation("a", time=1, reads=[x], writes=[mark], recompute=False)
    draft.operation("b", time=1, reads=[y, mark], recompute=False)
    graph, links = draft.graph(), Links(d2h=100, h2d=100, disk_read=0.5, disk_write=0.5)
    machine = Machine(host_capacity=6, links=links)
    places = Initial(frozenset(), frozenset([x, y]), frozenset())
    steps = [
        step
        for k, tensor in enumerate((x, y))
        for step in (
            prefetch(tensor, Memory.HOST),
            prefetch(tensor),
            compute(k),
            delete(tensor),
            delete(tensor, Memory.HOST),
        )
    ]
    time = simulate(graph, Schedule.of(steps, places), budget=6, machine=machine).figures.time
    bound = offload_bound(graph, replace(machine, host_capacity=1), 6, order="any").seconds
    assert bound * ABOVE >= 5 / 0.5
    assert bound <= time
    for host in (12, 11):  # what lies there need not be on the disk too
        assert offload_bound(graph, replace(machine, host_capacity=host), 6, order="any").seconds < 3
    assert offload_bound(graph, Machine(host_capacity=1, links=Links(d2h=1, h2d=1)), 6).seconds == inf


def test_states_that_the_cpu_changes_go_to_the_disk_and_back() -> None:
    """Two of 6 B, room for one on the host: the other is read and written; in fractions a quarter of each."""
    draft = Draft("states")
    states = [draft.tensor(name, 6, Kind.OPTIMIZER_STATE) for name in "xy"]
    first = draft.operation("first", time=1, writes=[draft.tensor("mark", 0)], recompute=False)
    host = Mode("host", 1, 0, (), on_host=True)
    updates = [
        draft.operation(f"U{x}", time=0, mutates=[x], phase=Phase.UPDATE, recompute=False, modes=[host])
        for x in states
    ]
    graph = draft.graph()
    machine = Machine(host_capacity=6, links=Links(d2h=0.001, h2d=0.001, disk_read=0.5, disk_write=0.5))
    x, y = states
    steps = [compute(first), compute(updates[0], 1), offload(x, Memory.DISK), delete(x, Memory.HOST)]
    steps += [prefetch(y, Memory.HOST), compute(updates[1], 1), offload(y, Memory.DISK)]
    steps += [delete(y, Memory.HOST), prefetch(x, Memory.HOST), delete(x, Memory.DISK)]
    places = Initial(frozenset([x]), frozenset([y]), frozenset())
    time = simulate(graph, Schedule.of(steps, places), budget=1, machine=machine).figures.time
    bounds = [offload_bound(graph, machine, 1, order=order).seconds for order in ORDERS]
    assert 3 < min(bounds) <= max(bounds) <= time
    assert offload_bound(graph, replace(machine, host_capacity=12), 1, order="any").seconds < 3
