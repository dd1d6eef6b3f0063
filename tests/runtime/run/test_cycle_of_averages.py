"""Averages over ranks on the simulated device: on a stream of their own, bit by bit, in planned memory."""

from __future__ import annotations

import random
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hostile import Case, Lateness, blocks, check_case, in_blocks
from memplan.graphs.machine import Memory
from memplan.model.iteration import Updates
from memplan.planner.simulator.simulate import simulate
from memplan.program.graph import Cost, graph_of
from memplan.torch_support.torch_fakes import FakeTensor
from memplan.tracing.trace import trace
from memplan.updates import averages
from memplan.updates.averages import Average
from torch import Tensor
from transfers import MACHINE, absent, adamw, in_order


class OneOfTwo:
    """Processes of which only one is here: its average is its own gradient."""

    size, rank, under_way = 2, 0, False

    def average_into(self, *_arguments: Any) -> None:
        raise AssertionError("it is issued by `on_device`")


def on_device(device: Any) -> Any:
    """What issues averages in the device's memory, to be computed on the stream that is the current one."""
    issue = Average.issue

    def issued(self: Average, count: int, *tensors: Tensor) -> tuple[Any, ...]:
        if isinstance(tensors[0], FakeTensor):
            return issue(self, count, *tensors)
        gradients = tensors[:count]
        forms = issue(self, count, *(torch.empty_strided(x.shape, x.stride()) for x in gradients))[:-1]

        def room(form: Tensor) -> Tensor:
            return device.room(form.untyped_storage().nbytes())

        flat, turn = room(forms[0]), room(forms[-1])
        made = [
            flat.view(torch.float32).as_strided(x.shape, x.stride(), x.storage_offset()) for x in forms[:-1]
        ]
        ends = [*zip(map(device.alias, made), map(device.alias, gradients), strict=True)]

        def work() -> None:
            for one, gradient in ends:
                one.copy_(gradient)

        return *made, turn.view(torch.float32)[0], lambda: device.launch(work)

    return patch.object(Average, "issue", issued)


def _same(device: Any) -> Any:
    return device


@pytest.mark.scripts
@pytest.mark.parametrize("moved", [False, True])
def test_averages_on_a_stream_give_what_eager_gives_in_the_memory_planned(moved: bool) -> None:
    for number in range(6):
        rng = random.Random(number)
        torch.manual_seed(0)  # as `seeded`, of which eager PyTorch's iterations are
        iteration = blocks()
        updates = Updates(adamw(iteration.module.parameters()))
        iteration = iteration._replace(updates=updates, processes=OneOfTwo())
        with patch.object(averages, "_SHARE", rng.choice((1, 3, 100))):
            program = in_blocks(trace(iteration))
        graph = graph_of(program, [Cost(1.0)] * len(program.operations), block_bytes=512)
        assert graph.operations.comm
        runs = in_order(graph)
        schedule = absent(graph, runs, rng, 0.4 if moved else 0.0, memories=(Memory.HOST,))
        budget = rng.choice((None, simulate(graph, schedule, machine=MACHINE).figures.least_budget))
        late = Lateness(number, rng.choice((None, "comm")))
        device = late.device()
        with on_device(device), patch.object(late, "device", partial(_same, device)):
            check_case("blocks", adamw, Case(iteration, program, graph, schedule, budget, MACHINE), late)
