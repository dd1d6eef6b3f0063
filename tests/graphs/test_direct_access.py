"""Modes that read weights in host memory: which operations get one, and that the simulator takes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from direct_access import DIRECT, with_direct_access, with_direct_gradients
from memplan.graphs.draft import Draft
from memplan.graphs.files.validate import validate
from memplan.graphs.generators import chain
from memplan.graphs.graph import Kind, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Initial, Schedule, compute
from memplan.planner.simulator.simulate import simulate


def test_every_operation_that_reads_weights_gets_the_mode() -> None:
    baseline = chain(4, seed=3)
    graph = with_direct_access(baseline, 1e6)
    validate(graph)
    for index in range(len(graph.operations)):
        operation, before = graph.operation(index), baseline.operation(index)
        weights = [x for x in operation.reads if graph.tensors.kind[x] == Kind.PARAMETER]
        assert operation.modes[: len(before.modes)] == before.modes
        direct = operation.modes[len(before.modes) :]
        extra = [(DIRECT, operation.writes, operation.time)]
        extra += [(f"{mode.name}-{DIRECT}", mode.writes, mode.time) for mode in before.modes]
        assert len(direct) == (len(extra) if weights else 0)
        for mode, (name, writes, time) in zip(direct, extra, strict=False):
            assert (mode.name, list(mode.reads_host), mode.writes) == (name, weights, writes)
            assert not mode.on_host
            assert mode.time == max(time, graph.tensors.bytes[weights].sum() / 1e6)
    assert with_direct_access(graph, 1e6).operations.modes == graph.operations.modes


def test_backward_operations_get_a_mode_that_writes_gradients_to_the_host() -> None:
    graph = with_direct_gradients(with_direct_access(chain(3, seed=3), 1e6), 2e3, rewrites=1.5)
    validate(graph)
    taken = 0
    for index in range(len(graph.operations)):
        operation = graph.operation(index)
        made = tuple(x for x in operation.writes if graph.tensors.kind[x] == Kind.PARAMETER_GRADIENT)
        below = {mode.name: mode for mode in operation.modes if mode.writes_host}
        if not made:
            assert not below
            continue
        seconds = 1.5 * graph.tensors.bytes[list(made)].sum() / 2e3
        expected = {"go": operation.time}
        expected |= {f"{mode.name}-go": mode.time for mode in operation.modes if mode.name == DIRECT}
        assert {name: mode.time for name, mode in below.items()} == {
            name: max(time, seconds) for name, time in expected.items()
        }
        assert all((mode.writes, mode.writes_host) == (operation.writes, made) for mode in below.values())
        assert all(bool(mode.reads_host) == (name == f"{DIRECT}-go") for name, mode in below.items())
        taken += 1
    assert taken == 3
    assert with_direct_gradients(graph, 2e3).operations.modes == graph.operations.modes


def test_phases_and_rereads() -> None:
    graph = with_direct_access(chain(2, seed=1), 1e3, phases=[Phase.FORWARD], rereads=2.0)
    forward, backward = graph.operation(0), graph.operation(graph.operation_index["B1"])
    assert not any(mode.name == DIRECT for mode in backward.modes)
    size = graph.tensors.bytes[graph.tensor_index["w1"]]
    assert forward.modes[-1].time == pytest.approx(2 * size / 1e3)


def test_a_lookup_reads_no_more_than_it_writes() -> None:
    draft = Draft("lookup")
    table, rows = draft.tensor("table", 10**6, Kind.PARAMETER), draft.tensor("rows", 1000)
    draft.operation("embedding", time=0.01, launch=0.5, reads=[table], writes=[rows])
    graph = with_direct_access(draft.graph([rows]), 1e4)
    assert graph.launch(0, 1) == 0.5
    assert graph.operations.modes[0][0].time == 1000 / 1e4


def test_the_mode_runs_with_the_weight_in_host_memory_alone() -> None:
    draft = Draft("one")
    weight, made = draft.tensor("w", 100, Kind.PARAMETER), draft.tensor("y", 10)
    draft.operation("F", time=1.0, reads=[weight], writes=[made])
    machine = Machine(links=Links(d2h=1.0, h2d=1.0))
    graph = with_direct_access(replace(draft.graph([made]), machine=machine), 50.0)
    direct = Schedule.of([compute(0, 1)], Initial(host=frozenset([weight])))
    assert simulate(graph, direct, budget=10).figures.time == 2.0
    with pytest.raises(InvalidScheduleError, match="not on the device"):
        simulate(graph, Schedule.of([compute(0)], Initial(host=frozenset([weight]))))
