"""Frozen weights in int8 beside trained ones: as buffers planned, as a tensor that wraps others refused."""

from __future__ import annotations

import copy
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional


class Wrapped(Tensor):
    """int8 rows and their scales, as quantisation libraries wrap them."""

    rows: Tensor
    scales: Tensor

    @staticmethod
    def __new__(cls, rows: Tensor, scales: Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, rows.shape, dtype=scales.dtype)  # pyright: ignore
        made.rows, made.scales = rows, scales
        return made

    def __tensor_flatten__(self) -> Any:
        return ["rows", "scales"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].rows, args[0].scales)
        full = [x.rows * x.scales if isinstance(x, cls) else x for x in args]
        return func(*full, **(kwargs or {}))


class Low(nn.Module):
    """Adapters of low rank beside a frozen weight of `rows` and `scales`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("rows", torch.randint(-127, 128, (32, 16), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(32, 1) / 127)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (functional.linear(x, self.rows * self.scales) + self.up(self.down(x))).square().mean()


def test_a_weight_of_two_buffers_is_planned() -> None:
    module = Low()
    plain, x = copy.deepcopy(module), torch.randn(64, 16)
    optimizer, other = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (module, plain))
    step = memplan.optimize(module, (x,), budget="1MB", optimizer=optimizer, solver="store-all")
    for _ in range(2):
        loss = plain(x)
        loss.backward()
        other.step()
        other.zero_grad()
        assert torch.equal(step(x), loss)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True))


def test_a_weight_that_wraps_tensors_is_refused_in_one_line() -> None:
    base = nn.Linear(16, 32, bias=False)
    wrapped = Wrapped(torch.ones(32, 16, dtype=torch.int8), torch.rand(32, 1))
    base.weight = nn.Parameter(wrapped, requires_grad=False)
    module = nn.Sequential(base, nn.Linear(32, 4))
    x = torch.randn(8, 16)
    assert module(x).shape == (8, 4)
    with pytest.raises(memplan.InputError, match=r"0.weight is a Wrapped, .*keep its parts as buffers"):
        memplan.optimize(module, (x,), loss_fn=torch.sum, budget="1MB", solver="store-all")
