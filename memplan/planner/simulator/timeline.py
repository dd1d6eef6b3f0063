"""The times of one iteration's steps in the steady state, and why a queue was idle before one.

    D2H       ▒▒▒▒▒▒▒
    compute   ████·······████████        the second computation waited 7 for the copy: cause D2H

For people to look at; the simulator needs the period alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...graphs.arrays import Floats, Ints
from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ..schedule.schedule import Schedule
from .clock import DEVICE_TRANSFERS, Played, Queue, lanes_of, play
from .simulate import settle
from .walk import Walk

NOTHING = -1
LAUNCH = -2
"""A cause: the training thread had not launched the step yet."""
FENCE = -3
"""A cause: transfers of the iteration before the last had not ended."""

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Timeline:
    """The times of a schedule's steps: arrays of shape (steps,), seconds.

    0 is when the compute queue ended the iteration before.
    queue: a Queue, NOTHING for a delete, which takes no time: it comes after the computation before it.
    idle: how long the queue stood still before the step. cause: why: the Queue of what it waited for last,
    LAUNCH, FENCE, or NOTHING if it did not wait. period: seconds of an iteration;
    what is under way at its end goes on into the next.
    """

    start: Floats
    end: Floats
    queue: Ints
    idle: Floats
    cause: Ints
    period: float


def timeline(
    graph: Graph, schedule: Schedule, *, budget: int | None = None, machine: Machine | None = None
) -> Timeline:
    """Return the timeline of a schedule in the steady state. Arguments and errors as `simulate`."""
    walk = Walk(graph, schedule, budget=budget, machine=machine or graph.machine)
    settle(walk)
    played = play(walk.queues, walk.seconds, walk.launches, walk.waits, lanes_of(walk.hierarchy))
    zero = played.free[Queue.COMPUTE]
    queue = np.array(walk.queues, np.int64)
    end = np.array(played.ends[-1], np.float64)
    idle, cause = _waits(walk, played)
    end = np.where(queue == NOTHING, _passed(queue, end, zero), end) - zero
    return Timeline(
        start=end - np.array(walk.seconds), end=end, queue=queue, idle=idle, cause=cause, period=played.period
    )


def _passed(queue: Ints, end: Floats, zero: float) -> Floats:
    """Return per step the end of the last computation up to it."""
    return np.maximum.accumulate(np.where(queue == Queue.COMPUTE, end, zero))


def _waits(walk: Walk, played: Played) -> tuple[Floats, Ints]:
    """Return idle and cause of each step."""
    steps, ends = len(walk.queues), played.ends
    free, lanes = list(played.free), lanes_of(walk.hierarchy)
    idle, cause = np.zeros(steps), np.full(steps, NOTHING)
    for step, queue in enumerate(walk.queues):
        if queue == NOTHING:
            continue
        start = ends[-1][step] - walk.seconds[step]
        ready = max(free[lane] for lane, _part in lanes[queue])
        idle[step] = max(0.0, start - ready)
        if idle[step] > _TOLERANCE * start:
            latest = FENCE, ready
            if queue in DEVICE_TRANSFERS:
                latest = Queue.COMPUTE, free[Queue.COMPUTE]
            for other in walk.waits.get(step, ()):
                # `ago`: 0 for this iteration, the last of `ends`, −1 for the one before.
                ago, of = divmod(other, steps)
                if -ago < len(ends) and ends[ago - 1][of] > latest[1]:
                    latest = walk.queues[of], ends[ago - 1][of]
            on_thread = walk.launches[step] > 0
            # It began later than all that it waited for: what is left is the thread, or the fence.
            late = start - latest[1] > _TOLERANCE * start
            cause[step] = (LAUNCH if on_thread else FENCE) if late else latest[0]
        for lane, part in lanes[queue]:
            # A lane may be held for a part of the step only.
            free[lane] = start + part * walk.seconds[step]
    return idle, cause
