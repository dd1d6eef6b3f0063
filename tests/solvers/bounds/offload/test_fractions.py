"""The offloading program's fractions as advice: parts that fit, of tensors that are somewhere."""

from __future__ import annotations

import numpy as np
import pytest
from memplan.graphs.graph import Graph, Phase
from memplan.graphs.machine import Machine
from memplan.instances.families import decoder
from memplan.solvers.bounds.offload.fractions import Fractions, fractions
from memplan.solvers.bounds.offload.offload_bound import able_operations, offload_bound
from small_offload import small_case

SECONDS, BUDGET = 60.0, 12_000_000_000


def advice_of(graph: Graph, machine: Machine, budget: int) -> Fractions:
    found = fractions(graph, range(len(graph.operations)), machine, budget, SECONDS)
    assert found is not None
    return found


def test_what_it_keeps_fits() -> None:
    """At each moment that begins or ends an operation, with what that touches."""
    graph = decoder("phi-2", "rtx3060", 1)
    assert graph.machine
    found = advice_of(graph, graph.machine, BUDGET)
    sizes, seen = graph.tensors.bytes, 0
    for s, operation in enumerate(found.moments):
        there = np.nan_to_num(found.there[s])
        assert ((there > -1e-6) & (there < 1 + 1e-6)).all()
        if operation >= 0:
            assert there @ sizes <= BUDGET * (1 + 1e-5)
            seen += 1
    assert seen >= 8


def test_weights_and_states_are_somewhere() -> None:
    """On the device or below; those that nobody changes always lie below as well."""
    graph = decoder("phi-2", "rtx3060", 1)
    assert graph.machine
    found = advice_of(graph, graph.machine, BUDGET)
    changed = np.flatnonzero(graph.persistent & (graph.mutators.counts() > 0) & (graph.tensors.bytes > 1e6))
    parts = np.nan_to_num(found.there) + np.nan_to_num(found.below)
    assert len(changed) > 100
    assert (parts[:, changed] >= 1 - 1e-5).all()


def test_tensors_that_the_same_operations_touch_share_their_parts() -> None:
    """Momentum and variance of one weight."""
    graph = decoder("phi-2", "rtx3060", 1)
    assert graph.machine
    found = advice_of(graph, graph.machine, BUDGET)
    index = graph.tensor_index
    first, second = index["m.7.mlp"], index["v.7.mlp"]
    assert (found.there[:, first] == found.there[:, second]).all()
    assert not np.isnan(found.there[:, first]).all()


@pytest.mark.scripts
def test_what_runs_on_the_cpu_is_what_can() -> None:
    """And hides there: no longer than the turn."""
    graph = decoder("phi-2", "rtx3060", 1)
    assert graph.machine
    found, bound = advice_of(graph, graph.machine, BUDGET), offload_bound(graph, graph.machine, BUDGET, 2.0)
    slow = {o: min(mode.time for mode in modes) for o, modes in graph.operations.modes.items()}
    assert (found.on_cpu[able_operations(graph)] == 0).all()
    assert ((found.on_cpu > -1e-6) & (found.on_cpu < 1 + 1e-6)).all()
    assert found.on_cpu.sum() > 1.0
    assert sum(found.on_cpu[o] * seconds for o, seconds in slow.items()) <= bound.seconds * 1.1


@pytest.mark.parametrize("seed", range(5))
def test_without_time_or_an_answer_there_is_none(seed: int) -> None:
    one = small_case(seed)
    graph, machine, budget = one.graph, one.machine, one.budget
    order = range(len(graph.operations))
    assert fractions(graph, order, machine, budget, 0.0) is None
    assert fractions(graph, order, machine, 0, SECONDS) is None
    assert fractions(graph, order, machine, budget, SECONDS, lambda: True) is None


@pytest.mark.scripts
def test_it_speaks_of_places_in_the_order() -> None:
    """What runs on the CPU is what can, where all updates stand behind all else."""
    graph = decoder("phi-2", "rtx3060", 1)
    assert graph.machine
    order = sorted(range(len(graph.operations)), key=lambda o: (graph.operations.phase[o] == Phase.UPDATE, o))
    found = fractions(graph, order, graph.machine, BUDGET, SECONDS)
    assert found is not None
    assert order != sorted(order)
    assert found.on_cpu.sum() > 1.0
    assert {order[place] for place in np.flatnonzero(found.on_cpu)} <= {*graph.operations.modes}
