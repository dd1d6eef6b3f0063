"""Sharded training on each device: gloo between CPUs, NCCL between GPUs, with one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import memplan
import pytest
import torch
from not_none import not_none
from on_devices import adam, assert_same, built, eagerly, state
from ranks import alone
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


@pytest.fixture(autouse=True)
def group(device: str) -> Iterator[None]:
    if device == "cuda":
        torch.cuda.set_device(0)
    backends = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}[device]
    with alone(backends):
        yield


@pytest.mark.parametrize("name", ["perceptron", "gpt2", "llama", "vit"])
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.05}], ids=["plain", "clipped"])
def test_one_rank_trains_as_an_eager_loop(name: str, options: dict[str, Any], device: str) -> None:
    iteration = built(name, device)
    optimizer = adam(iteration.module.parameters())
    expected = eagerly(iteration, optimizer, norm=options.get("max_grad_norm"))
    iteration = built(name, device)
    optimizer = adam(iteration.module.parameters())
    given: Any = iteration.inputs
    targets = getattr(given, "targets", None)
    inputs = given if targets is None else given.inputs
    step = memplan.optimize(
        iteration.module,
        inputs,
        targets=targets,
        loss_fn=iteration.loss_fn,
        optimizer=optimizer,
        budget="90%",
        shard=DeviceMesh(device, [0]),
        cache=False,
        time_limit=2,
        **options,
    )
    losses: list[torch.Tensor] = []
    arguments, keywords = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    keywords = keywords if targets is None else keywords | {"targets": targets}
    for turn in range(len(expected[0])):
        torch.manual_seed(turn)
        losses.append(step(*arguments, **keywords).detach())
    report = step.report().plans[0]
    assert report.predicted_peak <= not_none(report.budget)
    weights = {
        key: x.full_tensor() if isinstance(x, DTensor) else x for key, x in state(iteration.module).items()
    }
    assert_same((losses, weights), expected)
