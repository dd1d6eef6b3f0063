"""Frozen weights whose scales are attributes of the weight, as quantisation libraries keep them: planned."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from torch import Tensor, nn
from torch.nn import functional


class State:
    """Scales and a table of a weight, and the rows that share a scale."""

    def __init__(self, scales: Tensor, rows: int) -> None:
        self.scales, self.rows = scales, rows
        self.inner: dict[str, Tensor] = {"shift": torch.rand(())}


class Codes(nn.Parameter):
    """Codes of a weight. owner: the module that it belongs to."""

    state: State
    owner: nn.Module

    def __deepcopy__(self, memo: Any) -> Codes:
        made = Codes(self.data.clone(), requires_grad=False)
        made.state, made.owner = copy.deepcopy(self.state), self.owner
        return made


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        codes = Codes(torch.randint(-127, 128, (32, 16), dtype=torch.int8), requires_grad=False)
        codes.state, codes.owner = State(torch.rand(16, 1) / 127, 2), self
        self.weight = codes

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.weight, Codes)
        assert type(self.weight).__name__ == "Codes"
        state = self.weight.state
        scales = state.scales.repeat_interleave(state.rows, 0)
        return functional.linear(x, self.weight * scales + state.inner["shift"])


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


SCALES = "1.weight.state.scales"


@pytest.fixture
def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), Quantised(), nn.Linear(32, 4), Mean())


@pytest.fixture
def x() -> Tensor:
    return torch.randn(64, 16)


def planned(module: nn.Module, x: Tensor, **options: Any) -> memplan.Step:
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01)
    given: dict[str, Any] = {"budget": "100%", "solver": "store-all", "cache": False}
    return memplan.optimize(module, (x,), optimizer=optimizer, **(given | options))


def state_of(module: nn.Sequential) -> State:
    return module[1].weight.state  # pyright: ignore


def check(step: memplan.Step, module: nn.Module, x: Tensor) -> None:
    """Check one iteration against a copy of the module as it is now."""
    baseline = copy.deepcopy(module)
    assert torch.equal(step(x), baseline(x))


MOVED = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l", "budget": "95%"}


@pytest.mark.parametrize("options", [{}, MOVED], ids=["device alone", "weights moved"])
def test_attached_tensors_are_storages_of_the_plan(
    module: nn.Sequential, x: Tensor, options: dict[str, Any]
) -> None:
    baseline = copy.deepcopy(module)
    optimizer = torch.optim.AdamW([p for p in baseline.parameters() if p.requires_grad], lr=0.01)
    step = planned(module, x, **options)
    for _ in range(3):
        loss = baseline(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(step(x), loss)
    step.restore_to_device()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), baseline.parameters(), strict=True))
    program = step.plans[0].program
    storages = {name: program.storages[program.values[v].storage] for name, v in program.buffers.items()}
    assert {name: each.bytes for name, each in storages.items()} == {
        SCALES: 64,
        "1.weight.state.inner.shift": 4,
    }


def test_attached_tensors_are_read_in_each_iteration(module: nn.Sequential, x: Tensor) -> None:
    step = planned(module, x)
    state_of(module).scales.mul_(2)
    check(step, module, x)
    state_of(module).inner["shift"] = torch.rand(())
    check(step, module, x)
    module[1].weight.state = copy.deepcopy(state_of(module))  # pyright: ignore
    state_of(module).scales = torch.rand(16, 1)
    check(step, module, x)
    module[1].weight = copy.deepcopy(Quantised().weight)
    check(step, module, x)
    assert len(step.plans) == 1


def test_a_holders_number_decides_the_plan(module: nn.Sequential, x: Tensor) -> None:
    step = planned(module, x)
    state_of(module).rows = 4
    state_of(module).scales = torch.rand(8, 1)
    check(step, module, x)
    assert len(step.plans) == 2


def test_an_attached_tensor_that_is_gone_is_refused(module: nn.Sequential, x: Tensor) -> None:
    step = planned(module, x)
    del state_of(module).inner["shift"]
    with pytest.raises(memplan.MismatchError, match=r"1.weight.state.inner.shift, a tensor when .* is None"):
        step(x)


def test_a_checkpoint_has_attached_tensors(module: nn.Sequential, x: Tensor, tmp_path: Path) -> None:
    step = planned(module, x)
    step(x)
    step.save(tmp_path)
    expected = step(x)
    other = copy.deepcopy(module)
    state_of(other).scales.zero_()
    resumed = planned(other, x)
    resumed.load(tmp_path)
    assert torch.equal(resumed(x), expected)
    state_of(other).rows = 3
    with pytest.raises(memplan.MismatchError, match=r"1.weight.state has {'rows': 2}, and in the module"):
        resumed.load(tmp_path)


class Converting(nn.Module):
    """Converts its frozen bias in its first forward, as bitsandbytes' layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(16), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.bias.dtype != torch.bfloat16:
            self.bias.data = self.bias.data.to(torch.bfloat16)
        return x + self.bias


def test_a_frozen_tensor_that_forward_converts_is_planned_as_converted(x: Tensor) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), Converting(), Mean())
    baseline = copy.deepcopy(module)
    step = planned(module, x)
    assert module[1].bias.dtype == torch.bfloat16
    assert torch.equal(step(x), baseline(x))
