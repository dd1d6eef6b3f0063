"""Averages of gradients over ranks: operations of the queue comm, small gradients in buckets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import memplan
import numpy as np
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.graph import Graph
from memplan.graphs.transformations.one_queue import on_one_queue
from memplan.planner.baseline import baseline
from memplan.planner.bounds import time_bound
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.updates.averages import Average, averages
from ranks import alone
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

LAYERS = 8


def squares(output: Tensor) -> Tensor:
    return output.float().square().mean()


def planned(module: nn.Module, x: Tensor, **options: Any) -> memplan.Step:
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    own: dict[str, Any] = {"loss_fn": squares, "budget": "100%", "solver": "store-all", "verify": False}
    return memplan.optimize(
        DistributedDataParallel(module), x, optimizer=optimizer, cache=False, **(own | options)
    )


def with_times(graph: Graph, backward: float, average: float) -> Graph:
    """Return the graph in which only gradients of weights, and averages, take time."""
    seconds = np.zeros(len(graph.operations))
    made = {int(x) for o in graph.operations.comm for x in graph.read_lists[o]}
    for o in range(len(graph.operations)):
        if o in graph.operations.comm:
            seconds[o] = average
        elif made.intersection(graph.operations.writes[o].tolist()):
            seconds[o] = backward
    operations = replace(graph.operations, time=seconds, launch=np.zeros_like(seconds))
    return replace(graph, operations=operations)


@pytest.mark.scripts
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1}], ids=["ordinary", "clipped"])
def test_averages_overlap_with_backward(options: dict[str, Any]) -> None:
    """Equal layers: the first gradient, then all averages; or all gradients, then the last average."""
    with alone():
        module = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(LAYERS)))
        x = torch.randn(512, 32)  # activations are larger than gradients, which then never wait for memory
        step = planned(module, x, **options)
        step(x)
        graph = step.plans[0].graph
    assert graph is not None
    assert len(graph.operations.comm) == LAYERS
    for backward, average in ((2e-3, 3e-3), (3e-3, 2e-3), (1e-3, 1e-3)):
        timed = with_times(graph, backward, average)
        expected = max(backward + LAYERS * average, LAYERS * backward + average)
        assert baseline(timed).time == pytest.approx(expected)
        assert baseline(on_one_queue(timed)).time == pytest.approx(LAYERS * (backward + average))
        assert time_bound(timed) == pytest.approx(LAYERS * max(backward, average))
        assert baseline(timed).peak == baseline(on_one_queue(timed)).peak
        found = solve("auto", Problem(timed, baseline(timed).peak), 0.5, bound_seconds=0.1)
        assert found.figures.time == pytest.approx(expected)


class Mixed(nn.Module):
    """Parameters of two dtypes, an empty one, one whose gradient is transposed, one that is not updated."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(24, 40)
        self.narrow = nn.Linear(40, 24, dtype=torch.bfloat16)
        self.empty = nn.Parameter(torch.zeros(0, 40))
        self.turned = nn.Parameter(torch.randn(40, 24).t())
        self.scale = nn.Parameter(torch.ones(24))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.wide(x)
        hidden = torch.cat([hidden, hidden @ self.empty.t()], 1)
        return (self.narrow(hidden.bfloat16()).float() + hidden @ self.turned.t()) * self.scale


@pytest.mark.scripts
def test_buckets_have_one_dtype_and_the_bits_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.updates.averages._SHARE", 2)
    torch.manual_seed(3)
    with alone():
        module = Mixed()
        theirs = Mixed()
        theirs.load_state_dict(module.state_dict())
        step, other = planned(module, torch.randn(4, 24)), torch.optim.SGD(theirs.parameters(), 0.1)
        for _ in range(2):
            x = torch.randn(4, 24)
            step(x)
            squares(theirs(x)).backward()
            other.step()
            other.zero_grad()
        program = step.plans[0].program
    counts = [one.call.arguments[0] for one in program.operations if averages(one)]
    assert sum(counts) == 7
    assert 1 < len(counts) < 7
    values = program.values
    for one in filter(averages, program.operations):
        made = [values[x or 0] for x in one.call.outputs[:-1]]
        assert len({(value.dtype, value.storage) for value in made}) == 1
        assert all(value.offset * value.dtype.itemsize % 64 == 0 for value in made)
    own = module.state_dict()
    assert [name for name, each in theirs.state_dict().items() if not torch.equal(own[name], each)] == []


@pytest.mark.scripts
def test_the_peak_is_the_planned_one() -> None:
    """Averages under way keep their gradients until the computations have waited for them."""
    with alone():
        module = nn.Sequential(*(nn.Linear(96, 96) for _ in range(LAYERS)))
        step = planned(module, torch.randn(8, 96))
        plan = step.plans[0]
        x = torch.randn(8, 96)
        for _ in range(2):
            step(x)
        graph = plan.graph
        assert graph is not None
        peak = graph.resident_bytes + live_peak(lambda: step(x).detach()).peak_bytes
        assert plan.budget is not None
        assert peak <= plan.budget + 4096  # what the loop holds: the batch once more, losses


def test_an_average_alone_is_a_copy() -> None:
    """Of processes that measure: nothing is communicated."""

    class Alone:
        def average_into(self, _flat: Tensor, made: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
            for one, gradient in zip(made, gradients, strict=True):
                one.copy_(gradient)

    average: Any = Average(Alone())  # pyright: ignore[reportArgumentType]
    gradients = [torch.randn(3, 5), torch.randn(4, 6).t(), torch.randn(0, 2), torch.randn(())]
    *made, turn = average(4, *gradients, torch.zeros(()))
    assert all(map(torch.equal, made, gradients))
    assert [each.stride() for each in made] == [each.stride() for each in gradients]
    assert len({each.untyped_storage().data_ptr() for each in made}) == 1
    assert not turn
    alone, _turn = average(1, gradients[1])
    assert torch.equal(alone, gradients[1])
