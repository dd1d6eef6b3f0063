"""A small network with dropout, trained in one call: to see what a step says and survives."""

from __future__ import annotations

from typing import Any

import memplan
import torch
from torch import Tensor, nn

INPUTS = torch.randn(16, 8)


def model() -> nn.Module:
    torch.manual_seed(0)
    inner = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)) for _ in range(4)]
    return nn.Sequential(nn.Linear(8, 32), *inner, nn.Linear(32, 1))


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def optimized(module: nn.Module, optimizer: Any, **options: Any) -> Any:
    chosen = {"solver": "rotor", "cache": False, "verify": False, "budget": "90%", **options}
    if optimizer is None:  # the plan has the whole budget
        chosen = {"states": 0, "gradients": "freed", **chosen}
    return memplan.optimize(module, INPUTS, loss_fn=loss_of, optimizer=optimizer, **chosen)


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), 0.01, foreach=False)
