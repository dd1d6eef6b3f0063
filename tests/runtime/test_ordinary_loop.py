"""The loop that people have, as a graph, beside the bytes that PyTorch takes for it."""

from __future__ import annotations

import pytest
import torch
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Graph, Phase
from memplan.planner.baseline import baseline
from memplan.planner.sizing.ordinary_loop import ordinary_loop
from memplan.runtime.measuring.live_bytes import live_peak
from memplan.runtime.model.iteration import Iteration
from memplan.runtime.program.graph import Cost, graph_of
from memplan.runtime.trace.trace import trace
from memplan.runtime.updates.choice import Choice, updated
from torch import nn

WIDTH, LAYERS = 256, 6
COPIES = {"adamw": 1, "adam": 1, "sgd": 0}
MAKE = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def model(batch: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = (part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()))
    return nn.Sequential(*layers), torch.randn(batch, WIDTH)


def graph_for(name: str, batch: int) -> Graph:
    module, x = model(batch)
    program = trace(updated(Iteration(module, (x,), torch.sum), Choice(name, fused=False)))
    return graph_of(program, [Cost(0.0)] * len(program.operations))


def own_peak(name: str, batch: int) -> int:
    """Most bytes that PyTorch has in an iteration after the first, by kernels for lists of tensors."""
    module, x = model(batch)
    optimizer = MAKE[name](module.parameters(), lr=0.01, foreach=True)

    def iteration() -> None:
        module(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    iteration()
    states = [s for row in optimizer.state.values() for s in row.values() if torch.is_tensor(s) and s.dim()]
    there = sum(tensor.nbytes for tensor in (*module.parameters(), *states, x))
    return there + live_peak(iteration)[0]


@pytest.mark.parametrize("name", list(COPIES))
@pytest.mark.parametrize("batch", [8, 4096])
def test_the_peak_is_that_of_pytorchs_own_loop(name: str, batch: int) -> None:
    """At a small batch the step has the peak, at a large one the activations."""
    found = baseline(ordinary_loop(graph_for(name, batch), COPIES[name])).peak
    assert found == pytest.approx(own_peak(name, batch), rel=0.01)


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
