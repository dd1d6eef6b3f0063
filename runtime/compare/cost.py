"""What an iteration of eager PyTorch takes, beside a plan of it.

A budget's share is one of the baseline: the traced program that keeps everything. Eager PyTorch may take
less than that: a model's own checkpoints are left out of a trace, packed sequences are traced step by step.
It runs when a plan is compared, so it is measured then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from ...planner.budget import spelled
from ..device.choice import device_of
from ..measuring.live_bytes import live_peak
from ..program.program import Program
from ..torch_internals import profiler_is_on
from .peaks import resident_bytes

T = TypeVar("T")

LESS = 0.95
"""Eager takes less than the baseline if it takes so much of it at most."""


class Cost(NamedTuple):
    """The cost of an iteration. peak_bytes: the most on the device, weights, states and inputs included."""

    peak_bytes: int
    seconds: float


class EagerCost:
    """Measures the iterations that a comparison makes anyway: the peak of the second, whose states are there,
    and the time of the third."""

    def __init__(self, program: Program) -> None:
        self._device = device_of(program.device)
        self._resident = resident_bytes(program)
        self._peak: int | None = None
        self._seconds: float | None = None
        self._runs = 0

    def run(self, call: Callable[[], T]) -> T:
        self._runs += 1
        if self._runs == 2 and not profiler_is_on():
            found = live_peak(call, self._device)
            self._peak = self._resident + found.peak_bytes
            return found.result
        self._device.synchronize()
        start = perf_counter()
        result = call()
        self._device.synchronize()
        self._seconds = perf_counter() - start
        return result

    @property
    def cost(self) -> Cost | None:
        """The cost of the measured iterations, None where it was not measured."""
        if self._peak is None or self._seconds is None:
            return None
        return Cost(self._peak, self._seconds)


def below_baseline(eager: Mapping[str, Any], baseline: int) -> str | None:
    """A line where eager takes less than the baseline. eager: as in a graph's `source`."""
    peak: int | None = eager.get("peak")
    if peak is None or peak > LESS * baseline:
        return None
    return (
        f"eager PyTorch takes {spelled(peak)}, {peak / baseline:.0%} of the baseline of {spelled(baseline)} "
        "that a budget's share is a share of: only a plan below that saves memory"
    )
