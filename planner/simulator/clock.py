"""When each step runs: seven queues, each first in first out. Decides time, and nothing about memory.

Six carry steps. The seventh is the training thread, which launches the computations in list order, for the
device and for the CPU alike: none begins before its launch has ended. The thread runs ahead of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ...graphs.machine import Link, Links, Memory


class Queue(IntEnum):
    COMPUTE = 0
    CPU = 1
    D2H = 2
    H2D = 3
    DISK_WRITE = 4
    DISK_READ = 5


LAUNCH = len(Queue)
"""The place of the training thread among the queues' times."""

SOURCE = {
    Queue.D2H: Memory.DEVICE,
    Queue.H2D: Memory.HOST,
    Queue.DISK_WRITE: Memory.HOST,
    Queue.DISK_READ: Memory.DISK,
}
"""The memory that a transfer queue reads; the queue of a transfer follows from its two memories."""


def link_of(links: Links, queue: Queue) -> Link | None:
    """The link of a transfer queue, None where the machine has none."""
    return {
        Queue.D2H: links.d2h,
        Queue.H2D: links.h2d,
        Queue.DISK_WRITE: links.disk_write,
        Queue.DISK_READ: links.disk_read,
    }[queue]


Waits = dict[int, tuple[int, ...]]
"""Step -> the steps whose end it waits for besides its queue; below 0: of iterations before."""

_ITERATIONS = 240
_TOLERANCE = 1e-9


class Played(NamedTuple):
    """period: steady-state seconds of one iteration. ends: per step, of the iteration played last and, before
    it, of those that its steps wait for. free: when queues and thread were free, before and after the
    last."""

    period: float
    ends: Sequence[Sequence[float]]
    free: tuple[Sequence[float], Sequence[float]]


def play(queues: Sequence[int], seconds: Sequence[float], launches: Sequence[float], waits: Waits) -> Played:
    """One iteration of the cycle after the other, until they repeat.

    queues: per step its queue, -1 for a step that takes no queue (a delete). seconds: per step. launches:
    per step what the thread takes to launch it, 0 for what is no computation.

    Iterations follow each other without a barrier, but none starts, on any queue, before the transfers of
    the one before the last have ended: what they hold cannot grow for ever. They are played until every wait
    reaches back to one that was, and every queue's free time grows by the same amount twice; the slowest
    queue's growth is the period. Where the growth alternates for ever (a periodic regime longer than one
    iteration), it is the mean growth of the second half.
    """
    free = [0.0] * (LAUNCH + 1)
    furthest = _furthest_back(len(queues), waits)
    ends: deque[list[float]] = deque(maxlen=furthest + 1)
    history = [list(free)]
    growth: list[float] = []
    for _ in range(_ITERATIONS):
        fence = max(history[-2][Queue.D2H : LAUNCH]) if len(history) > 1 else 0.0
        ends.append(_one_iteration(queues, seconds, launches, waits, free, ends, fence))
        last, growth = growth, [now - then for now, then in zip(free, history[-1], strict=True)]
        history.append(list(free))
        if last and len(ends) >= furthest and _same(last, growth):
            return Played(max(growth), ends, (history[-2], history[-1]))
    half = len(history) // 2
    gained = (now - then for now, then in zip(history[-1], history[half], strict=True))
    return Played(max(gained) / (len(history) - 1 - half), ends, (history[-2], history[-1]))


def _furthest_back(steps: int, waits: Waits) -> int:
    """How many iterations back a step waits at most."""
    return -min((other // steps for others in waits.values() for other in others if other < 0), default=0)


def _one_iteration(
    queues: Sequence[int],
    seconds: Sequence[float],
    launches: Sequence[float],
    waits: Waits,
    free: list[float],
    before: Sequence[Sequence[float]],
    fence: float,
) -> list[float]:
    """The ends of the steps, `free` moved on. before: the ends in the iterations before.

    fence: no step starts earlier.
    """
    steps = len(queues)
    ends = [0.0] * steps
    for step, queue in enumerate(queues):
        if queue < 0:
            continue
        start = max(free[queue], fence)
        if launches[step]:
            free[LAUNCH] = max(free[LAUNCH], fence) + launches[step]
        if queue <= Queue.CPU and free[LAUNCH] > start:
            start = free[LAUNCH]
        if queue in (Queue.D2H, Queue.H2D) and free[Queue.COMPUTE] > start:
            start = free[Queue.COMPUTE]
        for other in waits.get(step, ()):
            ago, of = divmod(other, steps)
            if -ago <= len(before):
                start = max(start, before[ago][of] if ago else ends[of])
        free[queue] = ends[step] = start + seconds[step]
    return ends


def _same(last: list[float], growth: list[float]) -> bool:
    scale = max(growth) * _TOLERANCE
    return all(abs(a - b) <= scale for a, b in zip(last, growth, strict=True))
