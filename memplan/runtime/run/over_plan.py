"""The check whether iterations take more of the device than planned: an internal error, which is reported.

A device's allocator counts at no cost: what was requested of it, without what it adds to blocks by its own
rules. Other bytes on the device (other models, `.grad`) are those that are there before an iteration and
belong to no tensors of its plan. On the CPU nobody counts but a profiler, one in a process and 10 µs for each
block: there `plan run` looks.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager

from torch import Tensor

from ...devices.device.device import Device, StreamDevice
from ...devices.measuring.live_bytes import blocks_of
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import simulate
from .cycle import Cycle, Terms

WATCHED_ITERATIONS = 4
"""Enough for a schedule with transfers to come to its steady state, in all but odd cases."""


class Watch:
    """Watch over the device memory of a step's first iterations.

    planned: bytes, None if nobody counts.
    peak: the largest that was found.
    """

    def __init__(self, schedule: Schedule, terms: Terms | None, device: Device, cycle: Cycle | None) -> None:
        """Compute the planned peak.

        terms: None for a schedule that nobody has measured.
        """
        self._device, self._cycle = device, cycle
        self._left = 0
        self._resident: int | None = None
        self.peak: int | None = None
        if terms is not None and isinstance(device, StreamDevice):
            graph, budget, machine, *_ = terms
            machine = machine or graph.machine
            self._planned = simulate(graph, schedule, budget=budget, machine=machine).figures.peak
            stays = graph.resident.copy()
            stays[[] if cycle is None else list(cycle.moved)] = False
            self._resident = int(graph.tensors.bytes[stays].sum())
            self._left = WATCHED_ITERATIONS

    @contextmanager
    def iteration(self) -> Generator[None]:
        """Surround an iteration, and warn, once, if it took more than planned."""
        device = self._device
        if not self._left or not isinstance(device, StreamDevice):
            yield
            return
        if self._left == WATCHED_ITERATIONS:
            device.constant_bytes()  # what libraries keep is there from now on
        self._left -= 1
        if self._cycle is not None:
            self._cycle.end_jobs()
        others = device.requested_bytes() - (self.own_bytes or 0)
        if device.requested_peak_bytes() > others + self._planned:
            device.reset_peak()
        yield
        peak = device.requested_peak_bytes() - others
        self.peak = max(peak, self.peak or 0)
        if peak > self._planned:
            self._left = 0
            over = f"{peak:,} bytes on the device, {peak - self._planned:,} more than planned"
            warnings.warn(f"an internal error: a planned iteration took {over}", stacklevel=2)

    @property
    def own_bytes(self) -> int | None:
        """Return the bytes on the device now of the tensors that the schedule has between iterations.

        None if nobody counts.
        """
        return None if self._resident is None else self._resident + self._moved_bytes()

    def _moved_bytes(self) -> int:
        """Return the bytes of what the schedule moves that are on the device now."""
        if self._cycle is None:
            return 0
        pending = (copy for copies in self._cycle.pending() for copy in copies)
        there = (copy for copy in (*self._cycle.held.values(), *pending) if isinstance(copy, Tensor))
        return sum(blocks_of(there).values())
