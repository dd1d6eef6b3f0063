"""The yardstick of strangers' traces: a greedy planner whose schedules hold, and are what its rule says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_traces.traces import Trace, kernel_trace
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.offload.link_windows import link_bound

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from greedy_migration import greedy

traces = st.builds(
    Trace,
    st.sampled_from(("transformer", "bottlenecks", "cells")),
    seed=st.integers(0, 999),
    kernels=st.integers(40, 200),
    shared=st.integers(0, 2),
    in_place=st.booleans(),
    states=st.integers(0, 2),
    reach=st.floats(0.1, 3.0),
    host=st.none() | st.floats(0.1, 0.5),
    disk=st.none() | st.floats(0.1, 1.0),
)


@pytest.mark.scripts
@given(trace=traces, share=st.floats(0.35, 1.1))
@settings(max_examples=25, deadline=None)
def test_its_schedules_hold_and_keep_the_bound(trace: Trace, share: float) -> None:
    graph = kernel_trace(trace)
    machine, plain = graph.machine or Machine(), baseline(graph)
    budget = int(share * plain.peak)
    found = greedy(graph, machine, budget)
    if found is None:
        assert share < 1
        return
    schedule, figures = found
    assert simulate(graph, schedule, budget=budget, machine=machine).figures == figures
    assert (schedule.verbs == Verb.COMPUTE).sum() == len(graph.operations)
    assert figures.time >= link_bound(graph, machine, budget) * (1 - 1e-9)
    if share >= 1:
        assert figures.time == pytest.approx(plain.time)
        assert not (schedule.verbs == Verb.OFFLOAD).any()


@given(trace=traces)
@settings(max_examples=10, deadline=None)
def test_links_of_any_speed_hide_all(trace: Trace) -> None:
    graph = kernel_trace(trace)
    plain, machine = baseline(graph), Machine(links=Links(d2h=1e18, h2d=1e18))
    found = greedy(graph, machine, int(0.6 * plain.peak))
    assert found is None or found[1].time == pytest.approx(plain.time, rel=1e-6)
    assert greedy(graph, Machine(links=Links(d2h=1e18, h2d=1e18)), int(0.9 * plain.peak)) is not None


def idle_tensors(wide: int) -> Graph:
    """`early` and `late`, 6 B each, lie idle while `wide` is there; early has 4 s before it, late none."""
    draft = Draft("idle")
    early, late, large = draft.tensor("early", 6), draft.tensor("late", 6), draft.tensor("wide", wide)
    draft.operation("early", time=1, writes=[early], recompute=False)
    draft.operation("beside", time=4, recompute=False)
    draft.operation("late", time=1, writes=[late], recompute=False)
    draft.operation("wide", time=1, writes=[large], recompute=False)
    draft.operation("between", time=12, recompute=False)
    draft.operation("last", time=1, reads=[early, late], recompute=False)
    return draft.graph()


def offloaded(graph: Graph, machine: Machine, budget: int) -> tuple[set[str], float]:
    found = greedy(graph, machine, budget)
    assert found is not None
    schedule, figures = found
    moved = {graph.tensors.name[x] for verb, x, _where in schedule.rows() if verb == Verb.OFFLOAD}
    return moved, figures.time


def test_what_can_be_hidden_goes_first() -> None:
    graph, machine = idle_tensors(6), Machine(links=Links(d2h=2, h2d=2))
    assert offloaded(graph, machine, 18) == (set(), 20.0)
    assert offloaded(graph, machine, 12) == ({"early"}, 20.0)
    assert offloaded(idle_tensors(12), machine, 12) == ({"early", "late"}, 23.0)


def test_the_disk_takes_what_the_host_can_not() -> None:
    trace = Trace("bottlenecks", kernels=400, reach=2.0, host=0.1, disk=0.5)
    graph = kernel_trace(trace)
    machine, budget = graph.machine or Machine(), baseline(graph).peak // 2
    found = greedy(graph, machine, budget)
    assert found is not None
    assert found[1].host_peak <= (machine.host_capacity or 0)
    assert found[1].disk_peak > budget // 4
    assert greedy(graph, kernel_trace(replace(trace, disk=None)).machine or machine, budget) is None


def test_weights_leave_around_the_turn_s_end() -> None:
    """w, which nothing changes, is away while `wide` is there; it only comes up."""
    draft = Draft("weight")
    w, wide = draft.tensor("w", 4, Kind.PARAMETER), draft.tensor("wide", 6)
    draft.operation("first", time=1, reads=[w], recompute=False)
    draft.operation("beside", time=5, recompute=False)
    draft.operation("wide", time=1, writes=[wide], recompute=False)
    draft.operation("after", time=5, recompute=False)
    moved, seconds = offloaded(draft.graph(), Machine(links=Links(d2h=1, h2d=1)), 6)
    assert not moved
    assert seconds == pytest.approx(12)
