"""Advice of `optimizer=` with bytes is true for the loop's own optimizer."""

from __future__ import annotations

import re
from typing import Any

import memplan
import pytest
import torch
from torch import nn

OPTIONS: dict[str, Any] = {"solver": "rotor", "cache": False, "verify": False, "progress": False}
NAMES = ["AdamW", "RMSprop", "Adadelta", "NAdam", "Adafactor", "Muon"]


def problem(name: str) -> tuple[nn.Module, torch.Tensor, torch.optim.Optimizer]:
    sizes, bias = [(64, 256), (256, 256), (256, 64)], name != "Muon"
    layers = [nn.Linear(*size, bias=bias) for size in sizes]
    module = nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])
    return module, torch.randn(64, 64), getattr(torch.optim, name)(module.parameters())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_that_are_advised_suffice(name: str) -> None:
    module, x, optimizer = problem(name)  # the optimizer is found among all objects
    loss: dict[str, Any] = {"loss_fn": lambda y: y.square().mean(), **OPTIONS}
    with pytest.raises(memplan.InfeasibleError) as refused:
        memplan.optimize(module, x, budget="40%", **loss)
    (found,) = re.findall(r"optimizer= from about ([\d,]+) B", str(refused.value))
    del optimizer
    module, x, own = problem(name)
    memplan.optimize(module, x, budget=int(found.replace(",", "")), optimizer=own, **loss)(x)
