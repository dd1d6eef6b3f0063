"""O-ILP: which fractions of weights, optimizer states and activations are where in each step of an iteration.

    minimise Σ_t Time_t

Zhao, thesis, 2024, chapter 4, eqs. 4.1 to 4.23. What is read otherwise, because the printed formulas accept
schedules that use stale or lost data:

| eq.        | here                                                                                      |
|------------|-------------------------------------------------------------------------------------------|
| 4.4        | Opt exists between g_w and f_w in cyclic order, not outside                               |
| 4.7, 4.8   | what leaves in a step is there until its end: only earlier steps count                    |
| 4.11, 4.13 | a weight comes back after its CPU update, for t > g_w; 4.11 follows                       |
| 4.12       | the CPU update of a step uses gradients that have left in earlier steps                   |
| 4.14       | gradients count: |w|_g at g_w, then what has not left yet (a stock of its own, so the     |
|            | gradient need not leave within step g_w)                                                  |
| 4.17       | a block's peak is replayed; activations leave and return over any steps (not only the     |
|            | one that makes them)                                                                      |
| 4.18       | by step: gradients and activations leave the host after use; weights that never leave     |
|            | the device have no copy there                                                             |
| L_t        | factor k on the states; what leaves in its own step waits for the computation             |
| 4.20       | the update counts in step g_w alone                                                       |
| 4.21, 4.22 | activations load the links; frozen weights have a copy on the host for ever               |

A disk (not in the thesis) takes part of the host's copies; its traffic is bounded over the iteration. Links
that share a resource add up in rows of their own.

Batch size (4.5.3): r = 1 / batch factor is a column, fixed to 1 if the batch is given; r bounds all that
belongs to weights, and M_GPU, M_CPU and H are scaled by it.

Cumulated sums are stocks: columns that grow from step to step, so rows have few entries. Time, bytes in units
near 1. O(L²) columns and rows for L blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....planner.simulator.clock import Queue
from ...milp.linear import Linear, total
from .activations import Activation
from .columns import Columns
from .states import StateStocks
from .weights import WeightStocks


@dataclass
class OIlpProgram(Columns):
    """All columns, and the rows that bound what each step takes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights = [WeightStocks(self, group) for group in self.iteration.groups]
        self.states = [StateStocks(self, stocks) for stocks in self.weights]
        self.activations = [Activation.of_block(self, b) for b in range(len(self.choice))]
        self.activations += [Activation.of_carried(self, c) for c in self.iteration.carried]
        self._resources()

    def _resources(self) -> None:
        iteration, limits, loads = self.iteration, self.limits, self.loads
        self._blocks()
        for t in range(iteration.steps):
            time, base = self.time[t], iteration.base_bytes[t] / self.byte
            device_limit = self.share * (limits.device_bytes / self.byte)
            self.add("4.17", total(loads.device[t]) + base <= device_limit)
            if limits.host_bytes is not None:
                self.add("4.18", total(loads.host[t]) <= self.share * (limits.host_bytes / self.byte))
            # Steps after all blocks have a fixed time; those of blocks have their options'.
            seconds = iteration.after_seconds[t - 2 * len(self.choice)] if t >= 2 * len(self.choice) else 0.0
            management = self.share * (limits.management / self.second)
            self.add("4.20", total(loads.compute[t]) + seconds / self.second <= time)
            up, down = (
                self._seconds(loads.h2d[t], limits.h2d),
                self._seconds(loads.d2h[t], limits.d2h),
            )
            self.add("4.21", up <= time)
            self.add("4.22", down <= time)
            self.add("4.23", total(loads.cpu[t]) + management <= time)
            self._in_turns({Queue.H2D: up, Queue.D2H: down, Queue.CPU: total(loads.cpu[t])}, time)
        if limits.has_disk:
            self._disk()

    def _blocks(self) -> None:
        """Add the options' seconds and peaks (4.16, 4.19, 4.20)."""
        for b, (options, chosen) in enumerate(zip(self.iteration.blocks, self.choice, strict=True)):
            forward, backward = self.iteration.forward_step(b), self.iteration.backward_step(b)
            for option, c in zip(options, chosen, strict=True):
                self.loads.compute[forward].append(c * (option.forward_seconds / self.second))
                self.loads.compute[backward].append(c * (option.backward_seconds / self.second))
                self.loads.device[forward].append(c * (option.forward_peak / self.byte))
                self.loads.device[backward].append(c * (option.backward_peak / self.byte))

    def _seconds(self, loads: Iterable[Linear], rate: float) -> Linear:
        """Return the seconds that loads in bytes take on a link."""
        return total(loads) * (self.byte / rate / self.second)

    def _in_turns(self, seconds: Mapping[Queue, Linear], time: Linear) -> None:
        """Add a row for each resource that several of these queues hold, in addition to the thesis' rows."""
        held: dict[int, list[Linear]] = {}
        for queue, spent in seconds.items():
            for lane, part in self.limits.lanes[queue] if self.limits.lanes else ():
                held.setdefault(lane, []).append(spent * part)
        for loads in held.values():
            if len(loads) > 1:
                self.add("in turns", total(loads) <= time)

    def _disk(self) -> None:
        limits = self.limits
        stocks = (*self.weights, *self.states)
        time = total(self.time)
        assert limits.disk_read is not None
        assert limits.disk_write is not None
        reads = self._seconds([s.disk_reads for s in stocks], limits.disk_read)
        writes = self._seconds([s.disk_writes for s in stocks], limits.disk_write)
        self.add("disk read", reads <= time)
        self.add("disk write", writes <= time)
        self._in_turns({Queue.DISK_READ: reads, Queue.DISK_WRITE: writes}, time)
        if limits.disk_bytes is not None:
            held = total(s.disk_held for s in stocks)
            self.add("disk", held <= self.share * (limits.disk_bytes / self.byte))
