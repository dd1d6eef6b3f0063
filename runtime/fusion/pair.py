"""A kernel and the calls that it replaces, measured in turn: so a busy machine slows both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from ..below_autograd import as_traced
from ..device.choice import device_of
from ..measuring.live_bytes import live_peak
from ..measuring.measure import copies, runs, turns
from ..storage.blocks import size_bytes
from .kernel import Kernel, filled
from .members import Members


class Pair(NamedTuple):
    """A kernel's measurement relative to the calls that it replaces.

    ratio: the kernel's time over that of the calls.

    The others: see Measurement.
    """

    ratio: float
    spread: float
    peak_bytes: int
    result_bytes: tuple[int, ...]
    launch: float


def measured_pair(members: Members, kernel: Kernel) -> Pair:
    """Measure a kernel and the calls of the group's own operations: what is folded in has been computed
    before.
    """
    device = members.program.device
    values = members.program.values
    uncompiled = members.uncompiled()
    forms = [values[value] for value in (*members.inputs, *uncompiled.inputs)]
    count = copies(sum(form.end for form in forms), str(device))
    place = device_of(device)
    kernels: list[Callable[[], Any]] = []
    calls: list[Callable[[], Any]] = []
    for _ in range(count):
        given = {value: filled(values[value]) for value in {*members.inputs, *uncompiled.inputs}}
        kernels.append(partial(kernel, *(given[value] for value in members.inputs)))
        calls.append(partial(uncompiled, *(given[value] for value in uncompiled.inputs)))
    with as_traced(device):
        result = kernels[0]()
        peak = live_peak(kernels[0], device)
        sizes = tuple(size_bytes(tensor, device) for tensor in result)
        del result
        calls[0]()
        pairs = list(zip(turns(place, kernels), turns(place, calls), strict=True))
        warm = place.timed(pairs[-1][1]).seconds * len(pairs[-1][1])
        times = [tuple(map(place.timed, pair)) for pair in islice(cycle(pairs), runs(warm))]
    own, other = ([one.seconds for one in column] for column in zip(*times, strict=True))
    low, median, high = np.percentile(own, [25, 50, 75])
    launch = float(np.median([one.launch for one, _calls in times]))
    spread = float((high - low) / median)
    return Pair(float(median / np.median(other)), spread, peak.peak_bytes, sizes, launch)
