"""The bytes of every memory while each step runs, as the simulator counts them.

For people to look at; the simulator needs the largest of them alone.
"""

from __future__ import annotations

import numpy as np

from ...graphs.arrays import Ints
from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ..schedule.schedule import Schedule
from .clock import Queue
from .simulate import settle
from .walk import Walk


def byte_curves(
    graph: Graph, schedule: Schedule, *, budget: int | None = None, machine: Machine | None = None
) -> Ints:
    """Return the bytes in use per memory and step in the steady state, shape (memories + 1, steps).

    A row per memory, in their order; the last one, at PINNED, is what is pinned of the host. The first is
    `Replay.device_curve`. Arguments and errors as `simulate`.
    """
    walk = _Counting(graph, schedule, budget=budget, machine=machine or graph.machine)
    settle(walk)
    return np.array(walk.rows, np.int64).reshape(-1, len(walk.ledgers)).T


class _Counting(Walk):
    """A memory pass that records the bytes in use.

    rows: of the last iteration, per step the bytes of each ledger.
    """

    def run_iteration(self) -> object:
        self.rows: list[list[int]] = []
        self._passing = [0] * len(self.ledgers)
        return super().run_iteration()

    def _allocate(
        self, ledger_of: int, kept: int, transient: int, waits: list[int], queue: int = int(Queue.COMPUTE)
    ) -> None:
        super()._allocate(ledger_of, kept, transient, waits, queue)
        # Bytes that exist during the step alone, such as a workspace; `used` has only what stays.
        self._passing[ledger_of] += transient

    def _put(self, queue: int, seconds: float, launch: float) -> None:
        super()._put(queue, seconds, launch)
        self.rows.append([x.used + more for x, more in zip(self.ledgers, self._passing, strict=True)])
        self._passing = [0] * len(self.ledgers)
