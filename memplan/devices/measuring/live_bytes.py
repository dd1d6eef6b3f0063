"""The peak of bytes of storage that are alive at once while a block of code runs.

On the CPU the figure is exact: the running sum of the allocator's own events, each with its address and size,
temporaries inside operations included. Only those events are recorded, no operations, so a block costs about
10 µs. What a library takes without the allocator (oneDNN's scratch, a thread's stack) is not storage and does
not count. On CUDA it is what the allocator itself counts, in whole blocks of 512 bytes.

PyTorch has one profiler for all threads: to start it ends the user's, whose record is lost then. So if that
is on, nothing is counted on the CPU.

Both count from the start. On the CPU a block that was there before counts neither when it stays nor, unless
it is named, when it is freed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from ...graphs.errors import InputError
from ...torch_support.torch_profilers import (
    profiler_is_on,
    profiler_is_prepared,
    record_allocations,
    recorded_allocations,
)
from ..device.choice import device_of
from ..device.device import Device, StreamDevice

T = TypeVar("T")

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes two lines to stderr each time


class Peak(NamedTuple, Generic[T]):
    """Result and memory of a call. Both sizes are bytes above the start of the call.

    peak_bytes: the most alive at once.
    left_bytes: alive when it had returned, its result included.
    """

    peak_bytes: int
    left_bytes: int
    result: T


class AllocatorEvent(NamedTuple):
    """One allocator event.

    bytes: above 0 if the block is allocated, below 0 if it is freed.
    """

    time: int
    address: int
    bytes: int


class ProfilerOnError(InputError):
    """Error of a plan that can't be measured now: the user's profiler is on."""


def live_peak(
    call: Callable[[], T],
    device: str | torch.device | Device = "cpu",
    there: Mapping[int, int] | None = None,
) -> Peak[T]:
    """Run `call` once and report its peak. It may count itself. Raises InputError if the user's profiler
    is on.

    there: address and bytes of blocks, made under an earlier `live_peak`, that the call may give back.
    """
    device = device_of(device)
    return _counted(call, device) if isinstance(device, StreamDevice) else _cpu_peak(call, there or {})


def can_count(device: str | torch.device | Device = "cpu") -> bool:
    """Tell whether `live_peak` can count: the user's profiler is neither on nor about to be.

    Ask once, before many measurements.
    """
    taken = (not _counting and profiler_is_on()) or profiler_is_prepared()  # a count may hold others
    return isinstance(device_of(device), StreamDevice) or not taken


def check_profiler(device: str | torch.device | Device = "cpu") -> None:
    """Raise InputError if the user's profiler is on, or about to be."""
    if not can_count(device):
        raise ProfilerOnError(_TAKEN)


def blocks_of(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the memory of the tensors: address and bytes."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def live_curve(blocks: Iterable[AllocatorEvent], there: Mapping[int, int] | None = None) -> Iterator[int]:
    """Yield the bytes alive after each event, in order, above the start.

    there: blocks that existed before the events.
    """
    sizes = dict(there or {})
    live = 0
    for block in blocks:
        if block.bytes > 0:
            sizes[block.address] = block.bytes
            live += block.bytes
        else:
            # 0 for a block of before that is not named: it was never counted.
            live -= sizes.pop(block.address, 0)
        yield live


_counting: list[list[AllocatorEvent]] = []
"""The events of the counts that are open, the outermost first: PyTorch records for one at a time."""


_TAKEN = (
    "a plan is measured with PyTorch's profiler, of which there is one, and yours is on: plan before it "
    "starts (call the step once with a batch of each shape), or after it has ended"
)


def _cpu_peak(call: Callable[[], T], there: Mapping[int, int]) -> Peak[T]:
    if not _counting and profiler_is_on():
        raise ProfilerOnError(_TAKEN)
    _collect()  # what came so far is of the counts around this one alone
    blocks: list[AllocatorEvent] = []
    _counting.append(blocks)
    record_allocations()
    try:
        result = call()
    finally:
        _collect()
        _counting.pop()
        if _counting:
            record_allocations()  # for the count around this one
    curve = [0, *live_curve(blocks, there)]
    return Peak(max(curve), curve[-1], result)


def _collect() -> None:
    """Add the allocations recorded so far to the list of every counter that is open."""
    if _counting:
        found = _blocks(recorded_allocations().experimental_event_tree())
        recorded = sorted(found, key=lambda block: block.time)
        for blocks in _counting:
            blocks += recorded


def _blocks(events: Iterable[Any]) -> Iterator[AllocatorEvent]:
    for event in events:
        taken = event.extra_fields
        if event.name == "[memory]" and taken.device.type == "cpu":
            yield AllocatorEvent(event.start_time_ns, taken.ptr, taken.alloc_size)
        yield from _blocks(event.children)


def _counted(call: Callable[[], T], device: StreamDevice) -> Peak[T]:
    device.synchronize()
    device.reset_peak()
    start = device.allocated_bytes()
    result = call()
    device.synchronize()
    return Peak(device.peak_bytes() - start, device.allocated_bytes() - start, result)
