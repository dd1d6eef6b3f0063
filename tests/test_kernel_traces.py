"""Kernel traces made by seed have what is asked for; gradients and updates fit the forward part."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_traces.kept import KEPT
from kernel_traces.traces import Trace, kernel_trace
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest, load_graph
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Phase
from memplan.planner.baseline import baseline

BODIES = ("transformer", "bottlenecks", "cells")

ONE_BLOCK = 16
"""Weights of a transformer's: six matrices and their biases, two norms."""

traces = st.builds(
    Trace,
    st.sampled_from(BODIES),
    seed=st.integers(0, 10**6),
    kernels=st.integers(50, 300),
    shared=st.integers(0, 3),
    phases=st.booleans(),
    recompute=st.booleans(),
    in_place=st.booleans(),
    states=st.integers(0, 2),
    reach=st.floats(0.05, 5.0),
    host=st.none() | st.floats(0.0, 1.0),
    disk=st.none() | st.floats(0.05, 1.0),
)


@given(trace=traces)
@settings(max_examples=40, deadline=None)
def test_every_trace_is_a_valid_graph_with_a_plain_schedule(trace: Trace) -> None:
    graph = kernel_trace(trace)
    validate(graph)
    assert baseline(graph).peak >= graph.tensors.bytes.max()
    assert graph_digest(graph) == graph_digest(kernel_trace(trace))
    assert graph.operations.recompute.any() == trace.recompute
    assert (graph.operations.phase > Phase.FORWARD).any() == trace.phases


@given(trace=traces)
@settings(max_examples=30, deadline=None)
def test_each_weight_is_updated_once_or_by_each_of_its_uses(trace: Trace) -> None:
    graph = kernel_trace(trace)
    forward = int(graph.producers[graph.results[0]][0])
    updates = [changed for changed in graph.mutate_lists if changed and graph.persistent[changed[0]]]
    assert {len(changed) for changed in updates} == {1 + trace.states}
    found = Counter(weight for weight, *_states in updates)
    assert len(found) * (1 + trace.states) == graph.persistent.sum()
    for weight, times in found.items():
        uses = int((graph.consumers[weight] < forward).sum())
        assert times == (uses if trace.in_place else 1) > 0
    others = [changed for changed in graph.mutate_lists if changed and not graph.persistent[changed[0]]]
    assert trace.in_place or not others


@given(trace=traces)
@settings(max_examples=30, deadline=None)
def test_nothing_is_made_in_vain(trace: Trace) -> None:
    """Each tensor but the loss is read behind its producers, and each weight is updated."""
    graph = kernel_trace(trace)
    made = np.flatnonzero(graph.producers.counts() > 0)
    unread = [x for x in made.tolist() if not len(graph.consumers[x])]
    assert not unread
    for weight in np.flatnonzero(graph.persistent).tolist():
        assert len(graph.mutators[weight])


def test_blocks_that_share_weights_have_fewer() -> None:
    def weights(shared: int) -> int:
        return int(kernel_trace(Trace("transformer", kernels=600, shared=shared)).persistent.sum())

    once, pairs, all_alike = weights(1), weights(2), weights(0)
    assert once > pairs > all_alike
    assert all_alike == kernel_trace(Trace("transformer", kernels=1)).persistent.sum() + ONE_BLOCK


@pytest.mark.sampled(2)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("seed", range(3))
def test_sizes_and_times_are_spread_as_in_traces(body: str, seed: int) -> None:
    graph = kernel_trace(Trace(body, seed, in_place=bool(seed % 2), shared=seed))
    assert 1300 <= len(graph.operations) <= 1500
    assert all(re.fullmatch(r"k\d+", name) for name in graph.operations.name)
    assert all(re.fullmatch(r"t\d+", name) for name in graph.tensors.name)
    times, sizes = np.sort(graph.operations.time), np.sort(graph.tensors.bytes)
    assert times[-len(times) // 100] > 30 * np.median(times)
    assert sizes[-len(sizes) // 10 :].sum() > 0.2 * sizes.sum()
    assert graph_digest(graph) != graph_digest(kernel_trace(Trace(body, seed + 1)))


def test_the_machine_is_as_asked() -> None:
    graph = kernel_trace(Trace("cells", kernels=100, reach=0.5, host=0.25, disk=0.1))
    total, seconds = graph.tensors.bytes.sum(), graph.operations.time.sum()
    machine = graph.machine
    assert machine is not None
    assert machine.host_capacity == total // 4
    assert machine.links.h2d is not None
    assert machine.links.disk_read is not None
    assert machine.links.h2d.rate * seconds == pytest.approx(0.5 * total, rel=1e-2)
    assert machine.links.disk_read.rate == pytest.approx(0.1 * machine.links.h2d.rate)


@pytest.mark.parametrize("name", KEPT)
def test_kept_traces_come_from_the_generator(name: str, public: Path) -> None:
    assert graph_digest(load_graph(public / "traces" / f"{name}.json.gz")) == graph_digest(
        kernel_trace(KEPT[name])
    )


def test_an_unknown_body_is_refused() -> None:
    with pytest.raises(InputError, match="body must be transformer, bottlenecks, cells, not 'rnn'"):
        Trace("rnn")
