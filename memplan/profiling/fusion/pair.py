"""A kernel and the calls that it replaces, measured in turn: so a busy machine slows both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...devices.device.choice import device_of
from ...devices.measuring.live_bytes import live_peak
from ...devices.measuring.measure import copies
from ...devices.measuring.timing import Timing
from ...devices.storage.blocks import size_bytes
from ...torch_support.below_autograd import as_traced
from .fused import Replacement
from .kernel import filled
from .members import Members

MOST_ROUNDS = 8
"""Number of rounds after which a ratio is taken as it is, however busy the machine."""


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


def measured_pair(members: Members, kernel: Replacement) -> Pair:
    """Measure a kernel and the calls of the group's own operations: what is folded in has been computed
    before.
    """
    device = members.program.device
    values = members.program.values
    uncompiled = members.uncompiled()
    forms = [values[value] for value in (*members.inputs, *uncompiled.inputs)]
    # Enough copies of the inputs to fill the cache: in training they are not in it either.
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
        # Once without timing, as the kernel has run.
        calls[0]()
        own, other = Timing(place), Timing(place)
        for number in range(MOST_ROUNDS):
            if number and own.settled and other.settled:
                break
            own.add_round(kernels)
            other.add_round(calls)
    return Pair(own.seconds / other.seconds, own.spread, peak.peak_bytes, sizes, own.launch)
