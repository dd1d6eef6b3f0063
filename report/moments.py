"""The bytes of a memory over time, by kind.

Bytes are counted in list order, and drawn where the compute queue passes the step:

    compute      F1        F2             a moment: from when to when, the bytes at the step
    list     F1 . . . F2 .                steps between two computations: the largest of them
             ^^^^^ ---- ^^^^^             shown where the queue stands still, or for no time
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..graphs.arrays import Floats, Ints
from ..graphs.graph import Graph, Kind
from ..planner.addresses.lifetimes import WORKSPACE, Lifetimes
from ..planner.simulator.clock import Queue
from ..planner.simulator.timeline import Timeline

OTHER = len(Kind)
"""Beside the kinds: workspaces, and what is made anew while it is there."""


class Moments(NamedTuple):
    """at: seconds when each begins, shape (moments,). step: a step of the schedule. sums: bytes of each kind
    and OTHER, shape (moments, kinds + 1)."""

    at: Floats
    step: Ints
    sums: Ints


def passed(line: Timeline) -> Floats:
    """Seconds per step when the compute queue comes to it in list order; at the end one for the next turn."""
    computes = line.queue == Queue.COMPUTE
    done = np.maximum.accumulate(np.where(computes, line.end, 0.0))
    return np.append(np.where(computes, line.start, done), max(line.period, done[-1]) if len(done) else 0.0)


def moments(graph: Graph, line: Timeline, rows: Lifetimes) -> Moments:
    """Those at which something changes."""
    at, sums = passed(line), by_kind(graph, rows)
    total = sums.sum(axis=1)
    computes = line.queue == Queue.COMPUTE
    group = 2 * np.cumsum(computes) - computes  # odd: a computation; even: what stands behind it
    order = np.lexsort((-total, group))
    _groups, first = np.unique(group[order], return_index=True)
    steps = order[first]
    when = at[np.searchsorted(group, group[steps])]
    until = np.append(when[1:], at[-1])
    high = np.concatenate(([0], total[steps], [0]))
    spike = (high[1:-1] > high[:-2]) & (high[1:-1] >= high[2:])
    shown = (until > when) | spike
    when, steps = when[shown], steps[shown]
    if len(when) and when[0] > 0:  # the queue stands still first: with what the iteration before has left
        when, steps = np.append([0.0], when), np.append([len(total) - 1], steps)
    changes = np.append([True], (np.diff(sums[steps], axis=0) != 0).any(axis=1))[: len(steps)]
    return Moments(when[changes], steps[changes], sums[steps][changes])


def by_kind(graph: Graph, rows: Lifetimes) -> Ints:
    """Bytes per step and kind, shape (steps, kinds + 1)."""
    kinds = np.where(rows.tensor == WORKSPACE, OTHER, graph.tensors.kind[rows.tensor])
    return np.stack([rows.of(kinds == kind).live() for kind in range(OTHER + 1)], axis=1)
