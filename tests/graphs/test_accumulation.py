"""Gradient accumulation in graphs: K micro-batches, one update. Oracles: closed forms and the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from accumulation import with_accumulation
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.files.validate import validate
from memplan.graphs.generators import chain, unet
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.baseline import baseline


def updated(graph: Graph) -> Graph:
    return with_updates(graph, optimizer=ADAMW, when="in-backward", device_rate=1e6, host_rate=1e5)


@settings(max_examples=40, deadline=None)
@given(blocks=st.integers(1, 5), seed=st.integers(0, 10**6), count=st.integers(1, 4))
def test_k_micro_batches_are_k_times_the_work_and_one_set_of_gradients(
    blocks: int, seed: int, count: int
) -> None:
    one = chain(blocks, seed=seed)
    one = replace(one, operations=replace(one.operations, launch=2 * one.operations.time))
    graph = with_accumulation(one, count)
    validate(graph)
    assert baseline(graph).time == pytest.approx(count * baseline(one).time)
    assert baseline(one).time == pytest.approx(2 * one.operations.time.sum())
    assert len(graph.operations) == count * len(one.operations)
    for kind, copies in ((Kind.PARAMETER, 1), (Kind.PARAMETER_GRADIENT, 1), (Kind.INPUT, count)):
        of = (graph.tensors.kind == kind).sum()
        assert of == copies * (one.tensors.kind == kind).sum()
    assert (graph.operations.phase == Phase.LOSS).sum() == 1
    for i in range(1, blocks + 1):
        writers = graph.producers[graph.tensor_index[f"dw{i}"]]
        names = [graph.operations.name[o] for o in writers]
        assert names == [f"B{i}", *(f"B{i}@{number}" for number in range(2, count + 1))]


def test_all_gradients_live_through_the_second_micro_batch() -> None:
    """Three equal blocks, all tensors 1 MiB. Alone the peak is at B3: 1 batch, 3 weights, x1 x2, a1 a2 a3,
    g3 g2 dw3, the loss of 4 bytes. With two micro-batches there are 2 batches, 2 losses and all 3 dw."""
    one, mib = chain(3, uniform=True), 2**20
    assert baseline(one).peak == (1 + 3 + 2 + 3 + 3) * mib + 4
    assert baseline(with_accumulation(one, 2)).peak == (2 + 3 + 2 + 3 + 2 + 3) * mib + 8


def test_updates_follow_in_the_last_micro_batch() -> None:
    graph = updated(with_accumulation(chain(3, seed=5), 3))
    validate(graph)
    names = list(graph.operations.name)
    for i in (1, 2, 3):
        assert names[names.index(f"w{i}/update") - 1] == f"B{i}@3"
    assert [graph.tensors.name[x] for x in graph.results] == ["loss", "loss@2", "loss@3"]


def test_one_micro_batch_is_the_graph_itself() -> None:
    graph = chain(2)
    assert with_accumulation(graph, 1) is graph
    assert with_accumulation(graph, 2).source["micro_batches"] == 2


def test_any_graph_is_repeated() -> None:
    """A U-Net without weights: nothing is shared."""
    one = unet(2)
    graph = with_accumulation(one, 2)
    validate(graph)
    assert len(graph.tensors) == 2 * len(one.tensors)


def gradient_in_use() -> Graph:
    draft = Draft("in-use")
    x, w = draft.tensor("x", 1, Kind.INPUT), draft.tensor("w", 1, Kind.PARAMETER)
    dw, norm = draft.tensor("dw", 1, Kind.PARAMETER_GRADIENT), draft.tensor("norm", 1)
    draft.operation("B", time=1, reads=[x, w], writes=[dw], phase=Phase.BACKWARD)
    draft.operation("norm", time=1, reads=[dw], writes=[norm], phase=Phase.BACKWARD)
    return draft.graph([dw, norm])


@pytest.mark.parametrize(
    ("graph", "count", "line"),
    [
        (chain(2), 0, "0 micro-batches: there must be at least one"),
        (gradient_in_use(), 2, "in-use: dw is read before all micro-batches have contributed"),
        (updated(chain(2)), 2, "has updates: accumulate first, then add them"),
    ],
    ids=["none", "gradient-in-use", "updates"],
)
def test_refusals_are_one_line(graph: Graph, count: int, line: str) -> None:
    with pytest.raises(InputError, match=line):
        with_accumulation(graph, count)
