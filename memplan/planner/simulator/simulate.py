"""The simulator: runs a schedule by the rules of plan-schedule/1 and knows no solver.

Two passes that share nothing but a list of waits:

    steps ──walk──▶ peaks, and per step the steps it must wait for ──clock──▶ seconds
          (memory, in list order: walk.py, ledger.py)      (queues: clock.py)

So time can never change memory. An iteration is one period of a cycle: if transfers are under way
when the list ends, it is walked once more from the state it left, until that repeats (the steady state).
A schedule without transfers is walked once, in about 5 microseconds per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from ...graphs.collector import collector_off
from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ..schedule.schedule import Schedule
from .clock import Queue, lanes_of, play
from .walk import Walk

_MAX_ITERATIONS = 16


@dataclass(frozen=True)
class Figures:
    """The cost of a schedule: seconds per iteration, and peaks in bytes, by the rules' definition.

    least_budget: the smallest budget with which this schedule is valid.
    pinned_peak: of the bytes on the host those that are pinned.
    least_pinned: the smallest limit of pinned bytes with which it is valid.
    deeper_peaks: of the memories below the disk, in their order.
    """

    time: float
    peak: int
    least_budget: int
    host_peak: int
    disk_peak: int
    pinned_peak: int = 0
    least_pinned: int = 0
    deeper_peaks: tuple[int, ...] = ()

    @property
    def peaks(self) -> tuple[int, ...]:
        """Return the peak of each memory, in the order of the row."""
        return (self.peak, self.host_peak, self.disk_peak, *self.deeper_peaks)


@dataclass(frozen=True, repr=False)
class Replay:
    """The result of `simulate`.

    figures: time and peaks. device_curve: int64, shape (steps,): device bytes while each step runs.
    workspace_curve: likewise, of these the bytes that are there for the step alone.
    """

    figures: Figures
    device_curve: NDArray[np.int64]
    workspace_curve: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"<Replay: {self.figures}, a curve of {len(self.device_curve)} steps>"


@collector_off()
def simulate(
    graph: Graph,
    schedule: Schedule,
    *,
    budget: int | None = None,
    machine: Machine | None = None,
) -> Replay:
    """Simulate one iteration of `schedule`: validate it, and compute its time and peaks.

    budget: device bytes, None for no limit. machine: capacities and links; `graph.machine` by default.
    Raises InvalidScheduleError, which names the step, the tensor and the rule.
    """
    walk = Walk(graph, schedule, budget=budget, machine=machine or graph.machine)
    settle(walk)
    workspaces = np.zeros(len(schedule), np.int64)
    workspaces[list(walk.workspaces)] = list(walk.workspaces.values())
    device, host, disk, *deeper, pinned = walk.ledgers
    return Replay(
        Figures(
            time=_time(walk),
            peak=device.peak,
            least_budget=device.least,
            host_peak=host.peak,
            disk_peak=disk.peak,
            pinned_peak=pinned.peak,
            least_pinned=pinned.least,
            deeper_peaks=tuple(ledger.peak for ledger in deeper),
        ),
        np.array(walk.curve, np.int64),
        workspaces,
    )


def figures_of(
    graph: Graph, schedule: Schedule, *, budget: int | None = None, machine: Machine | None = None
) -> Figures:
    """Return the figures of `simulate`, as `replay_of` does."""
    return replay_of(graph, schedule, budget=budget, machine=machine).figures


def replay_of(
    graph: Graph, schedule: Schedule, *, budget: int | None = None, machine: Machine | None = None
) -> Replay:
    """Return what `simulate` returns, computed once for each of the last few questions about a schedule.

    The schedule is made read-only, so that it stays right.
    """
    question = ref(graph), budget, machine
    answers = _judged.setdefault(schedule, [])
    known = next((answer for asked, answer in answers if asked == question), None)
    if known is None:
        for column in (schedule.verbs, schedule.targets, schedule.wheres):
            # The answers are kept by the schedule's identity: its columns must not change.
            column.flags.writeable = False
        known = simulate(graph, schedule, budget=budget, machine=machine)
        answers.append((question, known))
        del answers[:-_ANSWERS]
    return known


_ANSWERS = 4
"""Simulations of a schedule that are kept: of some graphs that differ in numbers alone, say."""

_judged: WeakKeyDictionary[Schedule, list[tuple[object, Replay]]] = WeakKeyDictionary()


def settle(walk: Walk) -> bool:
    """Walk until the steady state, or long enough.

    Returns whether the last iteration walked is one of the steady state: the next would be the same.
    """
    left = walk.run_iteration()
    for _ in range(_MAX_ITERATIONS):
        if not left:
            return True
        before, left = left, walk.run_iteration()
        # The same transfers under way in two iterations: all further ones are the same.
        if left == before:
            return True
    return False


def _time(walk: Walk) -> float:
    if any(queue > Queue.COMPUTE for queue in walk.queues):
        lanes = lanes_of(walk.hierarchy)
        return play(walk.queues, walk.seconds, walk.launches, walk.waits, lanes).period
    return max(fsum(walk.seconds), fsum(walk.launches))  # what the clock would play
