"""Small models whose smallest budget is near the baseline's own peak: the refusal says so, and what helps."""

from __future__ import annotations

import re
from typing import Any

import memplan
import pytest
import torch
from memplan.solvers.problem import InfeasibleError
from torch import Tensor, nn
from torch.nn import functional

LABELS = torch.arange(16) % 10
OPTIONS: dict[str, Any] = {"solver": "rotor", "cache": False, "verify": False, "progress": False}


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.mean, self.spread = nn.Linear(196, 40), nn.Linear(40, 8), nn.Linear(40, 8)
        self.widen = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 196), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.narrow(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        made = self.widen(mean + torch.randn_like(mean) * spread.exp())
        return functional.mse_loss(made, x) + (mean.square() + spread.exp() - spread).mean()


def dense() -> tuple[nn.Module, Tensor, dict[str, Any]]:
    module = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    return module, torch.randn(16, 196), {"targets": LABELS, "loss_fn": functional.cross_entropy}


def convolutional() -> tuple[nn.Module, Tensor, dict[str, Any]]:
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(200, 10))
    return module, torch.randn(16, 1, 14, 14), {"targets": LABELS, "loss_fn": functional.cross_entropy}


def variational() -> tuple[nn.Module, Tensor, dict[str, Any]]:
    return Autoencoder(), torch.rand(16, 196), {}


@pytest.mark.parametrize("make", [dense, convolutional, variational])
def test_a_refusal_says_the_share_and_what_goes_below(make: Any) -> None:
    """Less than the share that is named is refused; with optimizer= about as little suffices as is said."""
    torch.manual_seed(0)
    module, x, options = make()
    optimizer = torch.optim.AdamW(module.parameters())
    with pytest.raises(InfeasibleError) as refusal:
        memplan.optimize(module, x, budget="20%", **options, **OPTIONS)
    text = str(refusal.value)
    needed = re.search(r"(\d+)% of the baseline's peak \(([\d,]+) B", text)
    planned = re.search(r"less suffices with optimizer= from about ([\d,]+) B = [^(]* \((\d+)%\)", text)
    both = re.search(r"with optimizer= and machine= from about ([\d,]+) B = [^(]* \((\d+)%\)", text)
    assert needed is not None
    assert planned is not None
    assert both is not None
    share, peak = int(needed[1]), int(needed[2].replace(",", ""))
    least, with_links = (int(found[1].replace(",", "")) for found in (planned, both))
    assert with_links <= least < peak
    assert int(planned[2]) < share <= 100
    with pytest.raises(InfeasibleError):
        memplan.optimize(module, x, budget=f"{share - 2}%", **options, **OPTIONS)
    assert memplan.optimize(module, x, budget="100%", **options, **OPTIONS).plan.figures.peak <= peak
    with pytest.raises(InfeasibleError) as other:
        memplan.optimize(module, x, budget=2000, optimizer=optimizer, **options, **OPTIONS)
    assert other.value.least is not None
    assert 0.8 * other.value.least < least < 1.05 * other.value.least
    assert other.value.least < share / 100 * peak


def test_bytes_are_answered_in_bytes() -> None:
    module, x, options = dense()
    optimizer = torch.optim.AdamW(module.parameters())
    with pytest.raises(InfeasibleError, match="less suffices with optimizer= from about") as refusal:
        memplan.optimize(module, x, budget=5000, **options, **OPTIONS)
    assert "%" not in str(refusal.value)
    assert optimizer.param_groups
