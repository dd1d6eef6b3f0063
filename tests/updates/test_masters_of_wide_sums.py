"""Gradients in bfloat16, summed in float32 over the batches of an update: for masters, or rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import unplanned
from memplan.graphs.errors import InputError
from optimizer_loops import STEPS, Make, batches, check_equal, loss_of, network, state_of, step_of
from torch import nn

EVERY = 4


def trained(module: nn.Module, norm: float | None) -> list[torch.Tensor]:
    """The loop that DeepSpeed and Megatron have: buffers and masters in float32."""
    weights = list(module.parameters())
    masters = [nn.Parameter(weight.detach().float()) for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=1e-2, foreach=False)
    sums = [torch.zeros_like(master) for master in masters]
    for number, batch in enumerate(batches(module, EVERY * STEPS), 1):
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
    for batch in batches(other, EVERY * STEPS):
        step(batch)
    for weight, expected, master in zip(other.parameters(), own.parameters(), masters, strict=True):
        assert torch.equal(weight, expected)
        assert torch.equal(optimizer.state[weight]["master"], master)


def trained_rounded(module: nn.Module, optimizer: torch.optim.Optimizer, norm: float | None) -> None:
    """The loop of sums in float32 that are rounded to the weights' dtype, as `.grad` must be."""
    weights = list(module.parameters())
    for number, batch in enumerate(batches(module, EVERY * STEPS), 1):
        (loss_of(module(batch)) / EVERY).backward()
        if number % EVERY == 1:
            sums = [nn.Parameter(torch.zeros_like(weight, dtype=torch.float32)) for weight in weights]
        for weight, total in zip(weights, sums, strict=True):
            assert weight.grad is not None
            total.data.add_(weight.grad)
            weight.grad = None
        if number % EVERY == 0:
            for total in sums:
                total.grad = total.data
            if norm is not None:
                nn.utils.clip_grad_norm_(sums, norm)
            for weight, total in zip(weights, sums, strict=True):
                weight.grad = total.to(weight.dtype)
            optimizer.step()
            optimizer.zero_grad()


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, foreach=False)


def muon(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Muon(module.parameters(), lr=1e-2)


def lion8bit(module: nn.Module) -> torch.optim.Optimizer:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    return bitsandbytes.optim.Lion8bit(module.parameters(), lr=1e-2, min_8bit_size=1)


@pytest.mark.parametrize(
    ("make", "norm", "verify"),
    [
        *((adamw, norm, verify) for norm in (None, 0.01) for verify in (False, True)),
        *((make, 0.01, False) for make in (muon, lion8bit)),
    ],
)
def test_weights_without_masters_take_the_rounded_sums(make: Make, norm: float | None, verify: bool) -> None:
    own, other = (network(bias=make is not muon).bfloat16() for _ in range(2))
    eager, optimizer = make(own), make(other)
    trained_rounded(own, eager, norm)
    options: dict[str, Any] = {"gradient_accumulation_steps": EVERY, "max_grad_norm": norm, "verify": verify}
    step = step_of(other, optimizer, accumulate_dtype=torch.float32, **options)
    for batch in batches(other, EVERY * STEPS):
        step(batch)
    check_equal(state_of(own, eager), state_of(other, optimizer))


@pytest.mark.parametrize("way", ["checkpoint", "state_dict"])
def test_sums_in_float32_are_saved_in_the_midst_of_an_update(way: str, tmp_path: Path) -> None:
    own, *modules = [network().bfloat16() for _ in range(3)]
    eager, *optimizers = map(adamw, (own, *modules))
    trained_rounded(own, eager, 0.01)
    options: dict[str, Any] = {"gradient_accumulation_steps": EVERY, "max_grad_norm": 0.01}
    first, last = (
        step_of(*pair, accumulate_dtype=torch.float32, **options)
        for pair in zip(modules, optimizers, strict=True)
    )
    given, half = batches(own, EVERY * STEPS), EVERY * STEPS // 2 + EVERY // 2
    for batch in given[:half]:
        first(batch)
    if way == "checkpoint":
        first.save(tmp_path / "saved")
        last.load(tmp_path / "saved")
    else:
        modules[1].load_state_dict(modules[0].state_dict())
        optimizers[1].load_state_dict(optimizers[0].state_dict())
    for batch in given[half:]:
        last(batch)
    check_equal(state_of(own, eager), state_of(modules[1], optimizers[1]))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"accumulate_dtype": torch.bfloat16}, "accumulate_dtype=.*give torch.float32"),
        ({"accumulate_dtype": torch.float32, "master_weights": True}, "gradient_accumulation_steps above 1"),
    ],
)
def test_what_is_refused(options: dict[str, Any], line: str) -> None:
    module = network().bfloat16()
    with pytest.raises(InputError, match=line):
        step_of(module, torch.optim.AdamW(module.parameters()), **options)


def test_sums_of_optimizers_outside_of_the_plan_are_refused_with_a_way_out() -> None:
    module = network().bfloat16()
    optimizer = unplanned.RAdam(module.parameters())
    with pytest.raises(InputError, match=r"accumulate_dtype= goes with optimizer= of .* with autocast="):
        step_of(module, optimizer, accumulate_dtype=torch.float32, gradient_accumulation_steps=2)


def test_the_way_out_sums_in_float32() -> None:
    own, other = network(), network()
    eager, optimizer = (unplanned.RAdam(module.parameters(), lr=1e-2) for module in (own, other))
    for number, batch in enumerate(batches(own), 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(own(batch)) / 2
        loss.backward()
        if number % 2 == 0:
            eager.step()
            eager.zero_grad()
    step = step_of(other, optimizer, autocast=torch.bfloat16, gradient_accumulation_steps=2)
    for batch in batches(other):
        step(batch)
    check_equal(state_of(own, eager), state_of(other, optimizer))
