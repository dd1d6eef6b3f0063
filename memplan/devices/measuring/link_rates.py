"""Rates at which tensors are copied between device and host: each direction alone, and both at once.

On CUDA from and to pinned memory, each direction on a separate stream; then from and to pageable memory, each
direction by a separate thread too, since such a copy blocks its thread. Without CUDA device and host are the
same memory: then this is how fast the processor copies it, with one thread per direction. The constant time
of a copy is measured by small ones, many in a row as a queue has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Barrier, Thread
from time import perf_counter

import torch
from torch import Tensor

from ..device.choice import device_of
from ..device.device import Device, Stream, StreamDevice
from .rates import CopyRates, Rate, repeated

SIZES = (2**20, 2**24, 2**27)
"""Bytes at a time. The largest is above the caches of processors; a schedule counts with its rate."""

SMALL, IN_A_ROW = 2**12, 32
"""Bytes of copies that take hardly more than their latency; how many are timed together."""

Copy = Callable[[], object]


def link_rates(device: str, sizes: tuple[int, ...] = SIZES) -> tuple[CopyRates, CopyRates]:
    """Measure copies to the host, then copies to the device.

    Takes two seconds, and memory of four times the largest size.
    """
    where = device_of(device)
    d2h, h2d, both = zip(*(_rates(where, size) for size in sizes), strict=True)
    slower = (pageable_rate(where, size) for size in sizes) if isinstance(where, StreamDevice) else ()
    pageable = tuple(slower)
    leave, back = small_rates(where)
    return CopyRates(leave, d2h, both, pageable), CopyRates(back, h2d, both, pageable)


def small_rates(device: Device) -> tuple[Rate, Rate]:
    """Measure copies of a few bytes to the host, then to the device, each direction alone."""
    leave, back = (partial(_in_a_row, copy) for copy in _copies(device, SMALL))
    return (
        repeated("device to host, small", SMALL, lambda: _seconds([leave], device) / IN_A_ROW),
        repeated("host to device, small", SMALL, lambda: _seconds([back], device) / IN_A_ROW),
    )


def alone_to_host(device: Device, size: int = SIZES[1]) -> float:
    """Return bytes per second of copies to host memory alone, as large as most weights."""
    leave, _back = _copies(device, size)
    return repeated("device to host", size, lambda: _seconds([leave], device)).median


def _in_a_row(copy: Copy) -> None:
    for _copy in range(IN_A_ROW):
        copy()


def pageable_rate(device: StreamDevice, size: int) -> Rate:
    """Measure both directions at once, with one thread each, from and to host memory that is not pinned."""
    near = [device.room(size).fill_(1) for _ in range(2)]
    far = [torch.ones(size, dtype=torch.uint8, device="cpu") for _ in range(2)]
    device.synchronize()
    ends = ((near[0], far[0]), (far[1], near[1]))
    copies = [partial(_on_own_stream, device, device.stream(), *pair) for pair in ends]
    return repeated("each way, both at once, not pinned", size, lambda: _by_threads(copies))


def _on_own_stream(device: StreamDevice, stream: Stream, source: Tensor, target: Tensor) -> None:
    with device.on(stream):
        device.copy(source, target)
        device.moment().synchronize()


def _rates(device: Device, size: int) -> tuple[Rate, Rate, Rate]:
    leave, back = _copies(device, size)
    return (
        repeated("device to host", size, lambda: _seconds([leave], device)),
        repeated("host to device", size, lambda: _seconds([back], device)),
        repeated("each way, both at once", size, lambda: _seconds([leave, back], device)),
    )


def _copies(device: Device, size: int) -> tuple[Copy, Copy]:
    """Return a copy to the host and one to the device, without a buffer in common."""
    near = [device.room(size).fill_(1) for _ in range(2)]
    # Written once: else the first copy would be timed with the making of its pages.
    far = [_host_memory(device, size).fill_(1) for _ in range(2)]
    return lambda: device.copy(near[0], far[0]), lambda: device.copy(far[1], near[1])


def _host_memory(device: Device, size: int) -> Tensor:
    pinned = device.host_memory(size)
    return torch.empty(size, dtype=torch.uint8, device="cpu") if pinned is None else pinned


def _seconds(copies: list[Copy], device: Device) -> float:
    """Return the seconds until all copies, started together, are done."""
    if isinstance(device, StreamDevice):
        return _streams_seconds(copies, device)
    return _by_threads(copies)


def _by_threads(copies: Sequence[Copy]) -> float:
    ready, moments = Barrier(len(copies)), list[float]()
    threads = [Thread(target=_at_once, args=(ready, copy, moments)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(moments) - min(moments)


def _at_once(ready: Barrier, copy: Copy, moments: list[float]) -> None:
    ready.wait()  # threads start one after the other
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
