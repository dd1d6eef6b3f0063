"""Gradients in bfloat16 that are summed in float32 over the batches of an update, and fed to masters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memplan.graphs.errors import InputError
from optimizer_loops import batches, loss_of, network, step_of
from torch import nn

EVERY = 4


def trained(module: nn.Module, norm: float | None) -> list[torch.Tensor]:
    """The loop that DeepSpeed and Megatron have: buffers and masters in float32."""
    weights = list(module.parameters())
    masters = [nn.Parameter(weight.detach().float()) for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=1e-2, foreach=False)
    sums = [torch.zeros_like(master) for master in masters]
    for number, batch in enumerate(batches(module), 1):
        (loss_of(module(batch)) / EVERY).backward()
        for weight, total in zip(weights, sums, strict=True):
            assert weight.grad is not None
            total.add_(weight.grad)
            weight.grad = None
        if number % EVERY == 0:
            for master, total in zip(masters, sums, strict=True):
                master.grad = total
            if norm is not None:
                nn.utils.clip_grad_norm_(masters, norm)
            optimizer.step()
            for weight, master, total in zip(weights, masters, sums, strict=True):
                weight.data.copy_(master)
                total.zero_()
    return [master.detach() for master in masters]


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("norm", [None, 0.01])
def test_masters_are_those_of_sums_in_float32(norm: float | None, verify: bool) -> None:
    own, other = network().bfloat16(), network().bfloat16()
    masters = trained(own, norm)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, foreach=False)
    options: dict[str, Any] = {"gradient_accumulation_steps": EVERY, "max_grad_norm": norm, "verify": verify}
    step = step_of(other, optimizer, master_weights=True, accumulate_dtype=torch.float32, **options)
    for batch in batches(other):
        step(batch)
    for weight, expected, master in zip(other.parameters(), own.parameters(), masters, strict=True):
        assert torch.equal(weight, expected)
        assert torch.equal(optimizer.state[weight]["master"], master)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"accumulate_dtype": torch.bfloat16}, "accumulate_dtype=.*give torch.float32"),
        ({"accumulate_dtype": torch.float32, "master_weights": True}, "gradient_accumulation_steps above 1"),
        ({"accumulate_dtype": torch.float32, "gradient_accumulation_steps": 2}, "master_weights=True"),
    ],
)
def test_what_is_refused(options: dict[str, Any], line: str) -> None:
    module = network().bfloat16()
    with pytest.raises(InputError, match=line):
        step_of(module, torch.optim.AdamW(module.parameters()), **options)
