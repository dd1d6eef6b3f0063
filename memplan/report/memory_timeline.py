"""The bytes of a memory over time, by kind.

Bytes are counted in list order, and drawn at the time when the compute queue passes the step:

    compute      F1        F2             a moment: from when to when, the bytes at the step
    list     F1 . . . F2 .                steps between two computations: the largest of them
             ^^^^^ ---- ^^^^^             shown if the queue is idle, or lasts no time
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..graphs.arrays import Floats, Ints
from ..graphs.graph import Graph, Kind
from ..planner.addresses.lifetimes import WORKSPACE, Lifetimes
from ..planner.simulator.clock import Queue
from ..planner.simulator.timeline import Timeline

KINDS = (*(kind.word.replace("_", " ") for kind in Kind), "workspace")
OTHER = len(Kind)
"""Index after the kinds: workspaces, and tensors that are recomputed while a copy is resident."""


class MemoryTimeline(NamedTuple):
    """Times between which the bytes of a memory are constant.

    at: seconds when each begins, shape (moments,).
    step: a step of the schedule, shape (moments,).
    sums: bytes of each kind and OTHER, shape (moments, kinds + 1).
    """

    at: Floats
    step: Ints
    sums: Ints


def passed(line: Timeline) -> Floats:
    """Return the seconds per step when the compute queue reaches it in list order.

    A last entry has those when it reaches the next iteration.
    """
    computes = line.queue == Queue.COMPUTE
    done = np.maximum.accumulate(np.where(computes, line.end, 0.0))
    return np.append(np.where(computes, line.start, done), max(line.period, done[-1]) if len(done) else 0.0)


def moments(graph: Graph, line: Timeline, rows: Lifetimes) -> MemoryTimeline:
    """Return the moments at which the bytes change."""
    at, sums = passed(line), by_kind(graph, rows)
    total = sums.sum(axis=1)
    computes = line.queue == Queue.COMPUTE
    group = 2 * np.cumsum(computes) - computes  # odd: a computation; even: the steps after it
    # lexsort's last key counts first: by group, then the largest bytes.
    order = np.lexsort((-total, group))
    _groups, first = np.unique(group[order], return_index=True)
    steps = order[first]
    # The first step of the group, as groups increase.
    when = at[np.searchsorted(group, group[steps])]
    until = np.append(when[1:], at[-1])
    high = np.concatenate(([0], total[steps], [0]))
    # Groups that last no time are shown if they are higher than those around them.
    spike = (high[1:-1] > high[:-2]) & (high[1:-1] >= high[2:])
    shown = (until > when) | spike
    when, steps = when[shown], steps[shown]
    if len(when) and when[0] > 0:  # the queue is idle first: with what the iteration before has left
        when, steps = np.append([0.0], when), np.append([len(total) - 1], steps)
    changes = np.append([True], (np.diff(sums[steps], axis=0) != 0).any(axis=1))[: len(steps)]
    return MemoryTimeline(when[changes], steps[changes], sums[steps][changes])


def by_kind(graph: Graph, rows: Lifetimes) -> Ints:
    """Return the bytes per step and kind, shape (steps, kinds + 1)."""
    kinds = np.where(rows.tensor == WORKSPACE, OTHER, graph.tensors.kind[rows.tensor])
    return np.stack([rows.of(kinds == kind).live() for kind in range(OTHER + 1)], axis=1)
