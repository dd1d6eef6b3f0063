"""The loop that people have, as a graph, beside the bytes that PyTorch takes for it."""

from __future__ import annotations

import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.draft import Draft
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Machine
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.program.graph import Cost, graph_of
from memplan.sizing.accumulation import STEPS, accumulating, earlier_seconds, is_sum, steps_of
from memplan.sizing.ordinary_loop import ordinary_loop
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from memplan.tracing.trace import trace
from memplan.updates.choice import OptimizerChoice, updated
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS = 256, 6
FREE = lambda _size: (0.0, None)  # noqa: E731
COPIES = {"adamw": 1, "adam": 1, "sgd": 0}
MAKE = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def model(batch: int) -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Tanh()) for _ in range(LAYERS))
    return nn.Sequential(*layers), torch.randn(batch, WIDTH)


def graph_for(name: str, batch: int) -> Graph:
    module, x = model(batch)
    program = trace(updated(Iteration(module, (x,), torch.sum), OptimizerChoice(name, fused=False)))
    return graph_of(program, [Cost(0.0)] * len(program.operations))


def own_peak(name: str, batch: int, micro_batches: int = 1, *, checkpointed: bool = False) -> int:
    """Most bytes that PyTorch has in an update after the first, by kernels for lists of tensors."""
    module, x = model(batch)
    optimizer = MAKE[name](module.parameters(), lr=0.01, foreach=True)

    def forward() -> torch.Tensor:
        y = x
        for layer in module:
            y = checkpoint(layer, y, use_reentrant=False) if checkpointed else layer(y)
        return y.sum()

    def iteration() -> None:
        for _ in range(micro_batches):
            forward().backward()
        optimizer.step()
        optimizer.zero_grad()

    iteration()
    states = [s for row in optimizer.state.values() for s in row.values() if torch.is_tensor(s) and s.dim()]
    there = sum(tensor.nbytes for tensor in (*module.parameters(), *states, x))
    return there + live_peak(iteration)[0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", list(COPIES))
@pytest.mark.parametrize("batch", [8, 4096])
def test_the_peak_is_that_of_pytorchs_own_loop(name: str, batch: int) -> None:
    """At a small batch the step has the peak, at a large one the activations."""
    found = baseline(ordinary_loop(graph_for(name, batch), COPIES[name])).peak
    assert found == pytest.approx(own_peak(name, batch), rel=0.01)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", list(COPIES))
@pytest.mark.parametrize("batch", [8, 4096])
@pytest.mark.parametrize("steps", [2, 3])
def test_the_peak_of_accumulation_is_that_of_pytorchs_own_loop(name: str, batch: int, steps: int) -> None:
    """From the second micro-batch on the gradients live through forward."""
    graph = accumulating(graph_for(name, batch), steps, FREE)
    validate(graph)
    found = baseline(ordinary_loop(graph, COPIES[name])).peak
    assert found == pytest.approx(own_peak(name, batch, steps), rel=0.01)
    if batch == 4096:
        assert found > 1.01 * baseline(ordinary_loop(graph_for(name, batch), COPIES[name])).peak


def test_accumulation_without_updates_leaves_the_sums() -> None:
    module, x = model(8)
    program = trace(Iteration(module, (x,), torch.sum))
    graph = graph_of(program, [Cost(0.0)] * len(program.operations))
    made = accumulating(graph, 4, FREE)
    validate(made)
    gradients = int(graph.tensors.bytes[graph.results].sum()) - 4
    assert int(made.tensors.bytes[is_sum(made)].sum()) == gradients
    assert [made.tensors.kind[x] != Kind.PARAMETER_GRADIENT for x in made.results] == [True]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_sums_are_those_of_several_micro_batches(steps: int) -> None:
    """A state of the optimizer that is called so in a graph of one micro-batch is none."""
    draft = Draft("named")
    state = draft.tensor("w.sum", 8, Kind.OPTIMIZER_STATE)
    draft.tensor("x.sum", 8)
    draft.operation("U", time=1.0, mutates=[state], phase=Phase.UPDATE, recompute=False)
    graph = draft.graph(source={STEPS: steps} if steps > 1 else {})
    assert steps_of(graph) == steps
    assert is_sum(graph).tolist() == [steps > 1, False]


def test_the_time_of_an_update_is_that_of_its_micro_batches_and_one_step() -> None:
    """Each operation takes a second; adding a gradient takes two."""
    module, x = model(8)
    program = trace(updated(Iteration(module, (x,), torch.sum), OptimizerChoice("sgd", fused=False)))
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    made = accumulating(graph, 5, lambda _size: (2.0, None))
    update = int((graph.operations.phase == Phase.UPDATE).sum())
    micro_batch = len(graph.operations) - update + 2 * LAYERS
    for loop in (made, ordinary_loop(made, 0)):
        schedule, last = baseline_schedule(loop), baseline(loop).time
        assert last == micro_batch + update
        assert earlier_seconds(loop, schedule, None, Machine()) == 4 * micro_batch
    assert earlier_seconds(graph, baseline_schedule(graph), None, Machine()) == 0.0
    assert accumulating(graph, 1, FREE) is graph


def test_the_peak_of_gradient_checkpointing_is_that_of_pytorchs_own_loop() -> None:
    """At a batch at which activations are most of it."""
    graph = ordinary_loop(graph_for("sgd", 4096), 0)
    schedule = registry.solve("layer-checkpoint", Problem(graph, 10 * baseline(graph).peak)).schedule
    found = simulate(graph, schedule).figures.peak
    assert found == pytest.approx(own_peak("sgd", 4096, checkpointed=True), rel=0.1)


def test_updates_come_last_and_nothing_else_changes() -> None:
    graph = graph_for("adamw", 8)
    made = ordinary_loop(graph, 1)
    validate(made)
    phases = made.operations.phase.tolist()
    assert phases == sorted(phases, key=lambda phase: phase == Phase.UPDATE)
    assert sorted(made.operations.name) == sorted(graph.operations.name)
    assert baseline(made).peak > baseline(graph).peak
    assert baseline(made).time == baseline(graph).time


def test_without_updates_it_is_the_same() -> None:
    module, x = model(8)
    program = trace(Iteration(module, (x,), torch.sum))
    graph = graph_of(program, [Cost(0.0)] * len(program.operations))
    assert ordinary_loop(graph, 1) is graph


def test_the_step_copies_masters_where_there_are_some() -> None:
    module, x = model(8)
    low = Iteration(module.bfloat16(), (x.bfloat16(),), torch.sum)
    program = trace(updated(low, OptimizerChoice("adamw", master_weights=True)))
    graph = graph_of(program, [Cost(0.0)] * len(program.operations))
    alone = graph_of(trace(updated(low, OptimizerChoice("adamw"))), [Cost(0.0)] * len(program.operations))
    elements = LAYERS * WIDTH**2
    for one, size in ((graph, 4), (alone, 2)):
        assert int(ordinary_loop(one, 3).operations.workspace.max()) == 3 * size * elements
