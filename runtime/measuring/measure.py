"""Time of one call on this machine, and its memory in addition to its inputs.

Time: the median of several runs after a warm-up, on the CPU by a clock, on CUDA by events around a row of
calls, all launched before the first runs (`StreamDevice.timed`). A fast call runs more often than a slow one:
as often as `TARGET_SECONDS` allows, within `FEWEST` and `MOST`. Freeing the result belongs to the run, as it
does in training. Memory: the peak of live storage while the call runs, above the inputs, which were there
before; outputs count, the rest of it is workspace.

A call that always meets the same inputs finds them in the cache, which a training iteration would have
filled with other things since: the sum of an iteration's calls came to 0.87 to 0.95 of eager's time so
(four models, one thread, 32 MiB of cache), and to 0.94 to 0.99 with `copies(…)` of the inputs that
take turns and fill the cache together; more copies than that changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch

from ..device.choice import device_of
from ..device.device import CACHE_BYTES, Device, StreamDevice
from ..storage.blocks import size_bytes
from .live_bytes import live_peak

TARGET_SECONDS = 0.02
FEWEST = 3
MOST = 25
MOST_COPIES = 16

Call = Callable[[], object]


class Measurement(NamedTuple):
    """Time and memory of a call.

    seconds: the median.
    spread: interquartile range over the median.
    peak_bytes: above the inputs.
    result_bytes: of the storage of each result in order, 0 for one that is not a tensor or not on the device.
    host_seconds, host_bytes: time and peak on the CPU, of what may run there.
    launch: seconds of the issuing thread in addition to the device's.
    """

    seconds: float
    spread: float
    peak_bytes: int
    result_bytes: tuple[int, ...] = ()
    host_seconds: float | None = None
    host_bytes: int = 0
    launch: float = 0.0


def measure(calls: Sequence[Call], device: str = "cpu") -> Measurement:
    """Measure one call, given as equal calls on different copies of its inputs, which take turns.

    With enough copies no run finds its inputs in a cache where the one before has left them.
    """
    place = device_of(device)
    calls[0]()  # what a library sets up once, like cuBLAS its workspace, belongs to no call
    peak_bytes, result_bytes = _memory(calls[0], device)
    in_turn = turns(place, calls)
    warm = place.timed(in_turn[-1]).seconds
    times = [place.timed(these) for these in islice(cycle(in_turn), runs(warm * len(in_turn[0])))]
    low, median, high = np.percentile([one.seconds for one in times], [25, 50, 75])
    launch = float(np.median([one.launch for one in times]))
    return Measurement(float(median), float((high - low) / median), peak_bytes, result_bytes, launch=launch)


def turns(place: Device, calls: Sequence[Call]) -> Sequence[Sequence[Call]]:
    """Split the calls into groups that are timed together.

    A device with streams needs all calls in a row, see `StreamDevice.timed`; otherwise each is timed alone.
    """
    return [calls] if isinstance(place, StreamDevice) else [[call] for call in calls]


def runs(warm: float) -> int:
    """Return how often to run a call whose warm-up took `warm` seconds."""
    return min(MOST, max(FEWEST, ceil(TARGET_SECONDS / max(warm, 1e-9))))


def _memory(call: Call, device: str) -> tuple[int, tuple[int, ...]]:
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
