"""Rates at which `torch.optim` updates float32 weights, each weight alone, as planned updates run: on the
host in a thread with as many processors as these have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch
from torch import nn

from ..device.choice import device_of
from ..device.threads import as_updates_run
from .rates import Rate, repeated

WEIGHT_BYTES = 2**26
"""Bytes of one weight. Its gradient and its two states are as large."""


UNFUSED, FUSED = {"foreach": False}, {"fused": True}


def update_rates(device: str | None, weight_bytes: int = WEIGHT_BYTES) -> tuple[Rate, Rate]:
    """Measure bytes of weights per second of AdamW, one operation after the other, then fused.

    device: None for the host, measured as the host updates.
    """
    where = "host" if device is None else "device"
    return (
        _measured(f"AdamW on the {where}", device, weight_bytes, UNFUSED),
        _measured(f"AdamW, fused, on the {where}", device, weight_bytes, FUSED),
    )


def _measured(what: str, device: str | None, size: int, way: Mapping[str, bool]) -> Rate:
    if device is None:
        return as_updates_run(lambda: repeated(what, size, timed_step("cpu", size, way)))
    return repeated(what, size, timed_step(device, size, way))


def timed_step(
    device: str, size: int, way: Mapping[str, bool], make: Callable[..., Any] = torch.optim.AdamW
) -> Callable[[], float]:
    """Return a function that steps an optimizer and returns how long that took.

    size: bytes of its weight.
    """
    weight = nn.Parameter(torch.ones(size // 4, device=device))
    weight.grad = torch.full_like(weight, 1e-3)
    optimizer: torch.optim.Optimizer = make([weight], **way)
    wait = device_of(device).synchronize

    def step() -> float:
        wait()
        start = perf_counter()
        optimizer.step()
        wait()
        return perf_counter() - start

    return step
