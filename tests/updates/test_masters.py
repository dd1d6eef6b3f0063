"""Weights in bfloat16 with float32 masters: bit by bit a loop of PyTorch that keeps them by hand."""

from __future__ import annotations

import copy
import io
from typing import Any

import memplan
import pytest
import torch
import unplanned
from memplan.graphs.machine import Links, Machine
from memplan.updates.catalogue import titles
from torch import Tensor, nn
from torch.nn import functional


def model(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """The norm stays float32, as many models have it."""
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(2)]
    module = nn.Sequential(nn.Linear(6, 16), *wide, nn.Linear(16, 3)).to(dtype)
    return nn.Sequential(module, Norm())


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.float())


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(48, 6, dtype=torch.bfloat16), torch.randint(3, (48,))) for _ in range(5)]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, nesterov=True)


CLIP = 0.5
"""The norm to which the gradients of `momentum` are clipped."""


def trained_by_hand(module: nn.Module, make: Any) -> torch.optim.Optimizer:
    masters = [nn.Parameter(p.detach().float()) for p in module.parameters()]
    optimizer = make(masters)
    for x, labels in batches():
        functional.cross_entropy(module(x), labels).backward()
        if make is momentum:
            nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        for weight, master in zip(module.parameters(), masters, strict=True):
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for weight, master in zip(module.parameters(), masters, strict=True):
                weight.copy_(master)
    return optimizer


def planned(module: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> memplan.Step:
    x, labels = batches()[0]
    given: dict[str, Any] = {"budget": "90%", "solver": "rotor", "loss_fn": functional.cross_entropy}
    return memplan.optimize(
        module, x, targets=labels, optimizer=optimizer, master_weights=True, **(given | options)
    )


def assert_same(module: nn.Module, optimizer: Any, baseline: nn.Module, other: Any) -> None:
    (masters,) = (group["params"] for group in other.param_groups)
    for weight, theirs, master in zip(module.parameters(), baseline.parameters(), masters, strict=True):
        assert torch.equal(weight, theirs)
        own = dict(optimizer.state[weight])
        assert ("master" in own) == (weight.dtype == torch.bfloat16)
        assert torch.equal(own.pop("master", master), master)
        assert own.keys() == other.state[master].keys()
        for name, state in other.state[master].items():
            assert own[name].dtype == state.dtype == torch.float32
            assert torch.equal(own[name], state), name


@pytest.mark.scripts
@pytest.mark.parametrize("make", [adamw, momentum])
def test_training_is_that_with_masters_by_hand(make: Any) -> None:
    """States on the host; the second half by another step, which loads what the first has saved."""
    module = model()
    baseline, other = copy.deepcopy(module), copy.deepcopy(module)
    expected = trained_by_hand(baseline, make)
    optimizer, second = make(module.parameters()), make(other.parameters())
    moved = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "zero-offload", "budget": "100%"}
    step = planned(module, optimizer, **(moved if make is adamw else {"max_grad_norm": CLIP}))
    for x, labels in batches()[:3]:
        step(x, targets=labels)
    file = io.BytesIO()
    torch.save([module.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, states = torch.load(file)
    step = planned(other, second, max_grad_norm=CLIP if make is momentum else None)
    other.load_state_dict(weights)
    second.load_state_dict(states)
    for x, labels in batches()[3:]:
        step(x, targets=labels)
    assert_same(other, second, baseline, expected)


@pytest.mark.parametrize(
    ("make", "options", "line"),
    [
        (unplanned.Adafactor, {}, f"master_weights=True goes with optimizer= of {titles()}"),
        (lambda _p: None, {}, "master_weights=True goes with optimizer="),
    ],
)
def test_what_has_no_masters_is_refused(make: Any, options: dict[str, Any], line: str) -> None:
    module = model()
    with pytest.raises(memplan.InputError, match=line):
        planned(module, make(module.parameters()), **options)


def test_float32_weights_need_none() -> None:
    module = model(torch.float32)
    with pytest.raises(memplan.InputError, match="no weight that is trained is bfloat16 or float16"):
        planned(module, adamw(module.parameters()))


def test_rounded_states_are_refused_before_and_after() -> None:
    """`load_state_dict` of torch.optim rounds to the weight's type: the bits are gone."""
    module = model()
    step = planned(module, adamw(module.parameters()))
    x, labels = batches()[0]
    step(x, targets=labels)
    optimizer = step._executor.optimizer  # pyright: ignore[reportPrivateUsage]
    assert optimizer is not None
    fresh = adamw(module.parameters())
    fresh.load_state_dict(optimizer.state_dict())
    with pytest.raises(memplan.InputError, match="call it after optimize, which keeps their bits"):
        planned(module, fresh)
    row = optimizer.state[next(module.parameters())]
    row["master"] = row["master"].bfloat16()
    with pytest.raises(
        memplan.MismatchError, match=r"master of 0.0.weight is torch.bfloat16.* is for torch.float32"
    ):
        step(x, targets=labels)


def test_the_steps_own_checkpoint_keeps_their_bits(tmp_path: Any) -> None:
    module = model()
    optimizer = adamw(module.parameters())
    step = planned(module, optimizer)
    x, labels = batches()[0]
    step(x, targets=labels)
    step.save(tmp_path)
    kept = {name: state.clone() for name, state in optimizer.state[next(module.parameters())].items()}
    step(x, targets=labels)
    step.load(tmp_path)
    row = optimizer.state[next(module.parameters())]
    assert all(
        torch.equal(row[name], state) and row[name].dtype == state.dtype for name, state in kept.items()
    )
