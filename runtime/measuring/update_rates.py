"""How fast `torch.optim.AdamW` updates float32 weights, each by itself, as planned updates run."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from time import perf_counter

import torch
from torch import nn

from ..device.choice import device_of
from .rates import Rate, repeated

WEIGHT_BYTES = 2**26
"""Of one weight. Its gradient and its two states are as large."""


def update_rate(device: str, place: str, weight_bytes: int = WEIGHT_BYTES) -> Rate:
    """Bytes of weights per second. place: the word for the device."""
    weight = nn.Parameter(torch.ones(weight_bytes // 4, device=device))
    weight.grad = torch.full_like(weight, 1e-3)
    optimizer = torch.optim.AdamW([weight], foreach=False)

    wait = device_of(device).synchronize

    def step() -> float:
        wait()
        start = perf_counter()
        optimizer.step()
        wait()
        return perf_counter() - start

    return repeated(f"AdamW on the {place}", weight_bytes, step)
