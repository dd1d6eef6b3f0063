"""Bytes of optimizers that are counted: of one that can't run without data, what its first step has made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.updates.optimizer_memory import counted, update_workspace
from torch import nn


class Reading(torch.optim.Optimizer):
    """An optimizer that reads memory by itself, with half a byte of state per byte of weight."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.grad.numpy()
                    self.state[weight].setdefault("average", torch.zeros_like(weight, dtype=torch.bfloat16))


def test_states_of_the_first_step_are_counted() -> None:
    module = nn.Linear(16, 8)
    optimizer, trained = Reading(module.parameters()), dict(module.named_parameters())
    with pytest.raises(InputError, match=r"can't be counted without running it .*: let it step once before"):
        counted(optimizer, trained)
    module(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    assert counted(optimizer, trained).states == 2 * (16 * 8 + 8)


def test_workspaces_are_those_of_update_functions() -> None:
    """AdamW has the square root of the second moment, Adadelta two square roots."""
    weights = [nn.Parameter(torch.ones(100, 30)), nn.Parameter(torch.ones(5))]
    assert update_workspace(torch.optim.AdamW(weights, foreach=False)) == pytest.approx(1.0, abs=0.01)
    assert update_workspace(torch.optim.Adadelta(weights, foreach=False)) == pytest.approx(2.0, abs=0.01)


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_states_of_wrapped_tensors_are_counted_by_their_parts(name: str) -> None:
    """Codes and scales of the matrix, tables of numbers; the bias has two states in float32."""
    torchao = pytest.importorskip("torchao.optim")
    module = nn.Linear(64, 128)
    optimizer, trained = getattr(torchao, name)(module.parameters()), dict(module.named_parameters())
    codes, block, table = {"8": (8192, 256, 1024), "4": (4096, 128, 64), "F": (8192, 256, 0)}[name[5]]
    expected = 2 * (codes + 4 * 8192 // block + table) + 2 * 4 * 128
    taken = counted(optimizer, trained).states
    assert expected <= taken <= expected + 16  # two counts of steps
