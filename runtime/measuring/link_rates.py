"""How fast tensors are copied between device and host: each way alone, and both at once.

On CUDA from and to pinned memory, each way on a stream of its own. Without CUDA device and host are the same
memory: then this is how fast the processor copies it, with one thread each way.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from ..device.choice import device_of
from ..device.device import Device, StreamDevice
from .rates import Rate, repeated

SIZES = (2**20, 2**24, 2**27)
"""Bytes at a time. The largest is above the caches of processors; a schedule counts with its rate."""

Copy = Callable[[], object]


class LinkRates(NamedTuple):
    """Size by size, growing. d2h, h2d: alone. both: each way while the other is busy too."""

    d2h: tuple[Rate, ...]
    h2d: tuple[Rate, ...]
    both: tuple[Rate, ...]


def link_rates(device: str, sizes: tuple[int, ...] = SIZES) -> LinkRates:
    """Takes two seconds, and four times the largest size in memory."""
    d2h, h2d, both = zip(*(_rates(device, size) for size in sizes), strict=True)
    return LinkRates(d2h, h2d, both)


def _rates(device: str, size: int) -> tuple[Rate, Rate, Rate]:
    leave, back = _copies(device, size)
    return (
        repeated("device to host", size, lambda: _seconds([leave], device)),
        repeated("host to device", size, lambda: _seconds([back], device)),
        repeated("each way, both at once", size, lambda: _seconds([leave, back], device)),
    )


def _copies(device: str, size: int) -> tuple[Copy, Copy]:
    """To the host and to the device, without a buffer in common."""
    where = device_of(device)
    near = [where.room(size).fill_(1) for _ in range(2)]
    far = [_host_memory(where, size).fill_(1) for _ in range(2)]
    return lambda: where.copy(near[0], far[0]), lambda: where.copy(far[1], near[1])


def _host_memory(device: Device, size: int) -> Tensor:
    pinned = device.host_memory(size)
    return torch.empty(size, dtype=torch.uint8) if pinned is None else pinned


def _seconds(copies: list[Copy], device: str) -> float:
    """Until all of them, started together, are done."""
    where = device_of(device)
    if isinstance(where, StreamDevice):
        return _streams_seconds(copies, where)
    ready, moments = Barrier(len(copies)), list[float]()
    threads = [Thread(target=_at_once, args=(ready, copy, moments)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(moments) - min(moments)


def _at_once(ready: Barrier, copy: Copy, moments: list[float]) -> None:
    ready.wait()
    moments.append(perf_counter())
    copy()
    moments.append(perf_counter())


def _streams_seconds(copies: list[Copy], device: StreamDevice) -> float:
    streams = [device.stream() for _ in copies]
    device.synchronize()
    start = perf_counter()
    for copy, stream in zip(copies, streams, strict=True):
        with device.on(stream):
            copy()
    device.synchronize()
    return perf_counter() - start
