"""Iterations replayed as CUDA graphs; on the CPU a replay runs the code anew (tests/support/replaying.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.device.choice import device_of
from memplan.devices.device.cpu import Cpu
from memplan.devices.device.device import StreamDevice
from on_devices import assert_same, built, by_plan, eagerly
from replaying import Replaying
from torch import nn


@pytest.fixture(autouse=True)
def graphs(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":
        stands_for = Replaying()
        monkeypatch.setattr(Cpu, "captures", True)
        monkeypatch.setattr(
            Cpu, "captured", lambda _self, *arguments: Replaying.captured(stands_for, *arguments)
        )


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 1e-2, fused=True)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1e-2, momentum=0.9)


Make = Callable[[Any], torch.optim.Optimizer]


def replayed(name: str, device: str, make: Make, **options: Any) -> tuple[Any, Any]:
    """What three iterations and updates give, the graph's last; and the step."""
    iteration = built(name, device)
    options = {"budget": "100%", "solver": "store-all", "cuda_graph": True, **options}
    accumulate = options.pop("accumulate", 1)
    return by_plan(iteration, make(iteration.module.parameters()), accumulate, **options)


@pytest.mark.parametrize("name", ["perceptron", "gpt2", "llama", "vit", "resnet", "unet", "norms", "bert"])
def test_models(name: str, device: str) -> None:
    iteration = built(name, device)
    expected = eagerly(iteration, fused(iteration.module.parameters()))
    found, _step = replayed(name, device, fused)
    assert_same(found, expected)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_recomputation(name: str, device: str) -> None:
    """Dropout draws the same numbers twice within a graph."""
    iteration = built(name, device)
    expected = eagerly(iteration, sgd(iteration.module.parameters()))
    found, _step = replayed(name, device, sgd, budget="80%", solver="auto")
    assert_same(found, expected)


def test_clipping_and_accumulation(device: str) -> None:
    iteration = built("gpt2", device)
    expected = eagerly(iteration, fused(iteration.module.parameters()), norm=0.05, accumulate=2)
    options = {"max_grad_norm": 0.05, "accumulate": 2}
    found, _step = replayed("gpt2", device, fused, **options)
    assert_same(found, expected)


def test_the_memory_of_a_graph_is_what_the_plan_has_above_what_stays(device: str) -> None:
    """In segments of the allocator, of 2 MiB or 20; with one copy more of inputs and results."""
    where = device_of(device)
    if not isinstance(where, StreamDevice):
        pytest.skip("only a device's allocator counts")
    module = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _layer in range(8)))
    module, x = module.to(device), torch.randn(4096, 1024, device=device)
    step = memplan.optimize(
        module,
        x,
        loss_fn=lambda y: y.square().mean(),
        optimizer=fused(module.parameters()),
        budget="100%",
        solver="store-all",
        cache=False,
        cuda_graph=True,
        verify=False,  # a comparison takes what eager PyTorch takes
    )
    where.release_unused()
    where.reset_peak()
    for _turn in range(3):
        step(x)
    planned = step.report().plans[0].predicted_peak
    assert where.reserved_peak_bytes() <= planned + 2 * x.nbytes + 128 * 2**20
