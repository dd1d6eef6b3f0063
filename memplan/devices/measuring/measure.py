"""Time of one call on this machine, and its memory in addition to its inputs.

Time: the fastest of several runs after a first one, in rounds (timing.py), on the CPU by a
clock, on CUDA by events around a row of calls, all launched before the first runs (`StreamDevice.timed`). A
fast call runs more often than a slow one. Freeing the result belongs to the run, as it does in training.
Memory: the peak of live storage while the call runs, above the inputs, which were there before; outputs
count, the rest of it is workspace.

A call that always meets the same inputs finds them in the cache, which a training iteration would have
filled with other things since: the sum of an iteration's calls came to 0.87 to 0.95 of eager's time so
(four models, one thread, 32 MiB of cache), and to 0.94 to 0.99 with `copies(…)` of the inputs that
take turns and fill the cache together; more copies than that changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

import torch

from ..device.choice import device_of
from ..device.device import CACHE_BYTES
from ..storage.blocks import size_bytes
from .live_bytes import live_peak
from .timing import AGREE, Call, Timing

MOST_COPIES = 16


class Measurement(NamedTuple):
    """Time and memory of a call.

    seconds: of the fastest run.
    spread: interquartile range of the runs over their median.
    peak_bytes: above the inputs.
    result_bytes: of the storage of each result in order, 0 for one that is not a tensor or not on the device.
    host_seconds, host_bytes: time and peak on the CPU, of what may run there.
    launch: seconds of the issuing thread in addition to the device's.
    doubt: share of `seconds` by which it may be off, see `Timing.doubt`.
    """

    seconds: float
    spread: float
    peak_bytes: int
    result_bytes: tuple[int, ...] = ()
    host_seconds: float | None = None
    host_bytes: int = 0
    launch: float = 0.0
    doubt: float = 0.0


def measure(calls: Sequence[Call], device: str = "cpu") -> Measurement:
    """Measure one call by itself, in the fewest rounds.

    calls: equal calls on different copies of its inputs, which take turns. With enough of them no run finds
        its inputs in a cache where the one before has left them.
    """
    timing = Timing(device_of(device))
    peak_bytes, result_bytes = first_run(calls[-1], device)
    for _ in range(min(AGREE)):
        timing.add_round(calls)
    return measurement(timing, peak_bytes, result_bytes)


def measurement(timing: Timing, peak_bytes: int, result_bytes: tuple[int, ...] = ()) -> Measurement:
    """Return what was measured of a call."""
    return Measurement(
        timing.seconds,
        timing.spread,
        peak_bytes,
        result_bytes,
        launch=timing.launch,
        doubt=timing.doubt,
    )


def first_run(call: Call, device: str = "cpu", *, ran: bool = False) -> tuple[int, tuple[int, ...]]:
    """Run a call for its memory; return its peak, and the bytes of its results' storages.

    ran: the same call has been run before in this process.
    """
    if not ran:
        call()  # what a library sets up once, like cuBLAS its workspace, belongs to no call
    peak, _left, result = live_peak(call, device)
    results: Sequence[Any] = result if isinstance(result, tuple | list) else (result,)
    place = torch.device(device)
    return peak, tuple(size_bytes(r, place) if isinstance(r, torch.Tensor) else 0 for r in results)


def copies(input_bytes: int, device: str = "cpu") -> int:
    """Return how many copies of a call's inputs fill the last cache before memory.

    They take 64 MiB at most, as profiling must stay small.
    """
    cache = device_of(device).cache_bytes() or CACHE_BYTES
    return min(MOST_COPIES, max(1, ceil(min(cache, 2 * CACHE_BYTES) / max(input_bytes, 1))))
