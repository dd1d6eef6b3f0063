"""Training graphs read as layers, and run layer by layer: on random graphs, all has its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.generators import chain, layered
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine
from memplan.graphs.structure.valid_order import is_valid_order
from memplan.instances.models import Transformer
from memplan.instances.transformer import Rates, Training, transformer
from memplan.planner.baseline import baseline
from memplan.planner.schedule.sequence import prune, runs_of, schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.layers.runs import always_kept, layer_runs
from memplan.solvers.offloading.layers.training import TrainingLayers, training_layers
from memplan.solvers.problem import NotAcceptedError, Problem
from memplan.solvers.registry.run import solve
from training_graphs import training


def read(graph: Graph) -> TrainingLayers | None:
    try:
        return training_layers("a solver", graph)
    except NotAcceptedError:
        return None


@settings(max_examples=150, deadline=None)
@given(
    layers=st.integers(2, 8),
    seed=st.integers(0, 10**6),
    update=st.sampled_from(["none", "end", "early"]),
)
def test_every_operation_weight_and_update_has_its_place(layers: int, seed: int, update: str) -> None:
    graph = training(layers, seed, update=update)
    found = read(graph)
    if found is None:
        return
    assert sorted(found.order) == list(range(len(graph.operations)))
    assert is_valid_order(graph, list(found.order))
    assert all(layer.weights for layer in found.layers)

    phase = graph.operations.phase
    placed = [o for layer in found.layers for o in (*layer.forward, *layer.backward, *layer.updates)]
    assert len(placed) == len(set(placed))
    buffers = {o for o in range(len(graph.operations)) if o not in placed}
    assert all(phase[o] == Phase.UPDATE for o in buffers)
    assert not any(graph.tensors.kind[x] == Kind.PARAMETER for o in buffers for x in graph.mutate_lists[o])

    weights = [x for layer in found.layers for x in layer.weights]
    read_somewhere = {
        x
        for o in range(len(graph.operations))
        if phase[o] != Phase.UPDATE
        for x in graph.read_lists[o]
        if graph.tensors.kind[x] == Kind.PARAMETER
    }
    assert sorted(weights) == sorted(read_somewhere)
    for number, layer in enumerate(found.layers):
        changed = {x for o in layer.updates for x in graph.mutate_lists[o]}
        assert changed <= set(layer.weights)
        if update != "none":
            assert len(layer.gradients) == len(changed)
        for earlier in found.layers[:number]:
            reads = {x for o in earlier.forward for x in graph.read_lists[o]}
            assert not reads & set(layer.weights)


def test_a_chain_of_blocks_is_one_layer_a_block() -> None:
    graph = chain(3, seed=1)
    found = training_layers("a solver", graph)
    names = graph.tensors.name
    assert [tuple(names[x] for x in layer.weights) for layer in found.layers] == [("w1",), ("w2",), ("w3",)]
    assert [tuple(names[x] for x in layer.gradients) for layer in found.layers] == [
        ("dw1",),
        ("dw2",),
        ("dw3",),
    ]
    assert [graph.operations.name[layer.forward[0]] for layer in found.layers] == ["F1", "F2", "F3"]
    assert found.size(found.layers[0].weights) == graph.tensors.bytes[found.layers[0].weights[0]]


@pytest.mark.parametrize("graph", [layered(9), chain(3, parameters=False), chain(1)], ids=lambda g: g.name)
def test_graphs_without_layers_are_refused(graph: Graph) -> None:
    with pytest.raises(NotAcceptedError, match="a solver takes"):
        training_layers("a solver", graph)


@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(["none", "end", "early"]), st.booleans())
@settings(max_examples=100, deadline=None)
def test_runs_of_any_training_are_a_valid_order(layers: int, seed: int, update: str, after: bool) -> None:
    """Recomputing all that can be: nothing useless runs, and the simulator accepts it on the device alone.

    Of the peak nothing is claimed: what is made again stands beside what is kept, so that of 2,934 such
    orders 65 took more than the plain one.
    """
    graph = training(layers, seed, update=update)
    found = read(graph)
    if found is None:
        return
    plan = layer_runs(found, always_kept(found), after=after)
    assert prune(graph, plan.runs) == plan.runs
    simulate(graph, schedule_of(graph, plan.runs), machine=Machine())
    assert len(plan.starts) == len(plan.layer_of) + 1 == 2 * len(found.layers)
    assert plan.starts == sorted(plan.starts)
    for position, (operation, _mode) in enumerate(plan.runs):
        section, phase = plan.section(position), graph.operations.phase[operation]
        layer = found.layers[plan.layer_of[section]]
        assert phase == Phase.UPDATE or operation in (*layer.forward, *layer.backward)
        assert section >= plan.turn or phase != Phase.BACKWARD
        assert position >= plan.first_backward or phase != Phase.BACKWARD


@pytest.mark.parametrize("solver", ["stronghold", "memferry"])
def test_checkpoints_do_not_make_layers_outputs_twice(solver: str) -> None:
    model = Transformer("small", 2, 64, 256, 4, 100, "made up", positions=32, tied=True)
    rates = Rates(flops=1e9, update_device=1e9, update_host=1e8)
    graph = transformer(model, Training(4, 32, granularity="operation"), rates)
    problem = Problem(graph, baseline(graph).peak, Machine(links=Links(4e7, 4e7)))
    answer = solve(solver, problem, None, {"activations": "checkpoint"}, bound_seconds=0)
    runs = runs_of(answer.schedule)
    repeated = len(runs) - len({operation for operation, _mode in runs})
    assert repeated > 0
    assert prune(graph, runs) == runs
