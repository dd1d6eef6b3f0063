"""Optimizer updates in graphs: what is added stands where it may, and what was there stays.

Oracles: the reader's own rules, the simulator, and a replay by hand of a schedule with updates on the host.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.files.validate import validate
from memplan.graphs.generators import chain, layered
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import ADAMW, SGD, Optimizer, When, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Initial, Schedule, compute, delete, offload, prefetch
from memplan.planner.simulator.simulate import simulate

WHEN: tuple[When, ...] = ("in-backward", "after")
MOMENTUM = Optimizer("sgd-momentum", ("momentum_buffer",))
MASTERS = Optimizer("adamw-masters", (*ADAMW.states, "master"))


def updated(graph: Graph, when: When = "in-backward", optimizer: Optimizer = ADAMW) -> Graph:
    return with_updates(graph, optimizer=optimizer, when=when, device_rate=2e6, host_rate=1e6)


def tied(*, reader_behind: bool) -> Graph:
    """One weight read by two layers, its gradient the sum of two; and a frozen one.

    reader_behind: another operation reads the weight when its gradient is complete.
    """
    draft = Draft("tied")
    x, w, frozen = (
        draft.tensor(name, 100, kind)
        for name, kind in (("x", Kind.INPUT), ("w", Kind.PARAMETER), ("frozen", Kind.PARAMETER))
    )
    a, b, loss, g, dw, dx = (
        draft.tensor("a", 100),
        draft.tensor("b", 100),
        draft.tensor("loss", 4),
        draft.tensor("g", 100, Kind.GRADIENT),
        draft.tensor("w.grad", 100, Kind.PARAMETER_GRADIENT),
        draft.tensor("dx", 100, Kind.GRADIENT),
    )
    draft.operation("F1", time=1, reads=[x, w], writes=[a])
    draft.operation("F2", time=1, reads=[a, w, frozen], writes=[b])
    draft.operation("loss", time=1, reads=[b], writes=[loss], phase=Phase.LOSS, recompute=False)
    draft.operation("B2", time=1, reads=[loss, w, a, frozen], writes=[g, dw], phase=Phase.BACKWARD)
    draft.operation("B1", time=1, reads=[g, x], writes=[dw], phase=Phase.BACKWARD)
    if reader_behind:
        draft.operation("B0", time=1, reads=[g, w], writes=[dx], phase=Phase.BACKWARD)
    return draft.graph([loss, dw])


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    when=st.sampled_from(WHEN),
    optimizer=st.sampled_from((ADAMW, SGD, MOMENTUM, MASTERS)),
)
def test_an_updated_graph_is_the_graph_with_updates(
    blocks: int, seed: int, when: When, optimizer: Optimizer
) -> None:
    before = chain(blocks, seed=seed)
    graph = updated(before, when, optimizer)
    validate(graph)
    names = graph.operations.name
    assert [name for name in names if not name.endswith("/update")] == list(before.operations.name)
    assert list(graph.tensors.name)[: len(before.tensors)] == list(before.tensors.name)
    assert [graph.tensors.name[x] for x in graph.results] == ["loss"]
    for i in range(1, blocks + 1):
        update = graph.operation(graph.operation_index[f"w{i}/update"])
        touched = [graph.tensors.name[x] for x in update.mutates]
        assert touched == [f"w{i}", *(f"w{i}.{state}" for state in optimizer.states)]
        assert [graph.tensors.name[x] for x in update.reads] == [f"dw{i}"]
        assert (update.phase, update.recompute, update.layer) == (Phase.UPDATE, False, f"block.{i}")
        size = graph.tensor(graph.tensor_index[f"w{i}"]).bytes
        assert (update.time, update.modes[0].time) == (size / 2e6, size / 1e6)
    states = int((graph.tensors.kind == Kind.OPTIMIZER_STATE).sum())
    assert states == blocks * len(optimizer.states)


@pytest.mark.parametrize("when", WHEN)
def test_gradients_of_an_updated_chain_live_one_at_a_time_in_backward(when: When) -> None:
    """F1 F2 F3 loss B3 B2 B1, all tensors of 1 MiB: behind each B its update, which frees the gradient."""
    graph = updated(chain(3, uniform=True), when)
    order = [name for name in graph.operations.name if name[0] in "Bw"]
    if when == "in-backward":
        assert order == ["B3", "w3/update", "B2", "w2/update", "B1", "w1/update"]
    else:
        assert order == ["B3", "B2", "B1", "w1/update", "w2/update", "w3/update"]
    assert baseline(graph).time == pytest.approx(3 + 0.5 + 6 + 3 * 2**20 / 2e6)


@pytest.mark.parametrize(("reader_behind", "last"), [(False, "B1"), (True, "B0")])
def test_a_tied_weight_changes_once_behind_all_its_readers(reader_behind: bool, last: str) -> None:
    graph = updated(tied(reader_behind=reader_behind))
    validate(graph)
    names = list(graph.operations.name)
    assert names.count("w/update") == 1
    assert names[names.index("w/update") - 1] == last
    assert not any(name.startswith("frozen") for name in names)
    assert baseline(graph).time == pytest.approx(5 + reader_behind + 100 / 2e6)


def test_states_and_workspace_by_scale_and_no_mode_without_a_host_rate() -> None:
    graph = with_updates(
        tied(reader_behind=False),
        optimizer=ADAMW,
        when="after",
        device_rate=1e3,
        state_scale=2.0,
        workspace_scale=1.5,
    )
    update = graph.operation(graph.operation_index["w/update"])
    assert [graph.tensor(x).bytes for x in update.mutates] == [100, 200, 200]
    assert (update.workspace, update.modes) == (150, ())


def test_an_updated_graph_survives_its_file(tmp_path: Path) -> None:
    graph = updated(chain(3, seed=4))
    save_graph(graph, tmp_path / "graph.json")
    recomputed = load_graph(tmp_path / "graph.json")
    assert recomputed.operations.modes == graph.operations.modes
    assert recomputed.source["optimizer"] == {"name": "adamw", "update": "in-backward"}


def test_updates_on_the_host_by_hand() -> None:
    """States and weights on the host, both gradients taken there:

    compute  F1 F2 loss B2 B1              F1 …     F1 waits for the whole way of w1; that of w2 is hidden
    d2h                    dw2 dw1
    cpu                        w2/update w1/update
    h2d                                  w2        w1
    """
    graph = updated(chain(2, uniform=True, fast_forward=False), optimizer=MOMENTUM)
    o, x = graph.operation_index, graph.tensor_index
    steps = [compute(o[name]) for name in ("F1", "F2", "loss")]
    for i in (2, 1):
        steps += [
            compute(o[f"B{i}"]),
            offload(x[f"dw{i}"]),
            delete(x[f"dw{i}"]),
            delete(x[f"w{i}"]),
            compute(o[f"w{i}/update"], 1),
            prefetch(x[f"w{i}"]),
        ]
    states = frozenset(x[f"w{i}.momentum_buffer"] for i in (1, 2))
    weights = frozenset(x[f"w{i}"] for i in (1, 2))
    machine = Machine(links=Links(d2h=2e6, h2d=2e6))
    schedule = Schedule.of(steps, Initial(host=states, both=weights))
    figures = simulate(graph, schedule, machine=machine).figures
    size = 2**20
    assert figures.host_peak == 6 * size
    computing, down, update, up = 2 + 0.5 + 4, size / 2e6, size / 1e6, size / 2e6
    assert figures.time == pytest.approx(computing + down + update + up)


@pytest.mark.parametrize(
    "graph", [layered(9), updated(tied(reader_behind=False))], ids=["no-gradients", "twice"]
)
def test_refusals_are_one_line(graph: Graph) -> None:
    with pytest.raises(InputError, match="no parameter gradient is among its results") as refused:
        updated(graph, optimizer=SGD)
    assert "\n" not in str(refused.value)


def test_a_gradient_of_no_parameter_is_refused() -> None:
    draft = Draft("nameless")
    x, w = draft.tensor("x", 1, Kind.INPUT), draft.tensor("w", 1, Kind.PARAMETER)
    gradient = draft.tensor("gradient", 1, Kind.PARAMETER_GRADIENT)
    draft.operation("B", time=1, reads=[x, w], writes=[gradient], phase=Phase.BACKWARD)
    graph = draft.graph([gradient])
    with pytest.raises(InputError, match="gradient is no parameter's gradient by name"):
        updated(graph)
    assert with_updates(
        graph, optimizer=SGD, when="after", device_rate=1.0, gradients={w: gradient}
    ).operations.name == ["B", "w/update"]


@pytest.mark.parametrize("when", WHEN)
def test_a_weight_that_forward_changes_is_updated_after_that(when: When) -> None:
    """F B clamp: `clamp` writes back at the end what forward has made of w."""
    draft = Draft("clamped")
    x, w = draft.tensor("x", 100, Kind.INPUT), draft.tensor("w", 100, Kind.PARAMETER)
    clamped, loss = draft.tensor("clamped", 100), draft.tensor("loss", 4)
    dw = draft.tensor("dw", 100, Kind.PARAMETER_GRADIENT)
    draft.operation("C", time=1, reads=[w], writes=[clamped])
    draft.operation("F", time=1, reads=[x, clamped], writes=[loss], phase=Phase.LOSS)
    draft.operation("B", time=1, reads=[x, clamped], writes=[dw], phase=Phase.BACKWARD)
    draft.operation("write back", time=1, reads=[clamped], mutates=[w], phase=Phase.UPDATE, recompute=False)
    graph = updated(draft.graph([loss, dw]), when)
    validate(graph)
    assert list(graph.operations.name) == ["C", "F", "B", "write back", "w/update"]
    swapped = Schedule.of(compute(graph.operation_index[name]) for name in ("C", "F", "B", "w/update"))
    with pytest.raises(InvalidScheduleError, match="write back has not changed w yet"):
        simulate(graph, swapped)
    with pytest.raises(InputError, match="w is updated already"):
        updated(updated_but_not_used_up())


def updated_but_not_used_up() -> Graph:
    draft = Draft("updated")
    w, loss = draft.tensor("w", 100, Kind.PARAMETER), draft.tensor("loss", 4)
    dw = draft.tensor("dw", 100, Kind.PARAMETER_GRADIENT)
    draft.operation("F", time=1, reads=[w], writes=[loss], phase=Phase.LOSS)
    draft.operation("B", time=1, reads=[w], writes=[dw], phase=Phase.BACKWARD)
    draft.operation("U", time=1, reads=[dw], mutates=[w], phase=Phase.UPDATE, recompute=False)
    return draft.graph([loss, dw])
