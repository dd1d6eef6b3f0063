"""A cycle as arrays for compiled code, and arrays for the state of a walk over an order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Floats, Ints
from ....planner.replay.instance import lane_arrays
from ....planner.replay.rows import COLUMNS, WAIT, IterationTables
from .cycle import Cycle


class Facts(NamedTuple):
    """A `Cycle` as arrays; seconds: shape (runs, 2), RUN and LAUNCH of a `IterationTables`; `first`,
    `leaving`: per run, the numbers of its offload intervals in one flat row. lanes, parts: see
    `Instance`."""

    limit: int
    idle: int
    lanes: Ints
    parts: Floats
    seconds: Floats
    need: Ints
    rest: Ints
    size: Ints
    offload_seconds: Floats
    prefetch_seconds: Floats
    changed: Ints
    changed_at: Ints
    weight: Ints
    after: Ints
    before: Ints
    version: Ints
    first: Ints
    leaving: Ints
    first_back: Ints
    coming: Ints
    first_new: Ints
    new: Ints


def facts_of(cycle: Cycle) -> Facts:
    lanes, parts = lane_arrays(cycle.machine)
    intervals = np.array(cycle.intervals, np.int64).reshape(-1, 4)
    changed = np.array(cycle.changed_by, np.int64).reshape(-1, 2)
    weight, after, before, version = (np.ascontiguousarray(column) for column in intervals.T)
    first, leaving = _rows(after, cycle.runs)
    first_back, coming = _rows(before, cycle.runs)
    first_new, new = _rows(changed[:, 1], cycle.runs)
    return Facts(
        limit=cycle.limit,
        idle=cycle.idle,
        lanes=lanes,
        parts=parts,
        seconds=np.stack([cycle.seconds, cycle.graph.operations.launch], axis=1),
        need=np.array(cycle.need, np.int64),
        rest=np.array(cycle.rest, np.int64),
        size=np.array(cycle.sizes, np.int64),
        offload_seconds=np.array(cycle.offload_seconds, np.float64),
        prefetch_seconds=np.array(cycle.prefetch_seconds, np.float64),
        changed=changed[:, 0].copy(),
        changed_at=changed[:, 1].copy(),
        weight=weight,
        after=after,
        before=before,
        version=version,
        first=first,
        leaving=leaving,
        first_back=first_back,
        coming=coming,
        first_new=first_new,
        new=new,
    )


def _rows(run: Ints, runs: int) -> tuple[Ints, Ints]:
    """Return the entries of each run, run after run, and where each run's begin."""
    first = np.zeros(runs + 1, np.int64)
    first[1:] = np.cumsum(np.bincount(run, minlength=runs))
    # Stable: the entries of one run keep their order.
    return first, np.argsort(run, kind="stable").astype(np.int64)


class Scratch(NamedTuple):
    """The changing state of a walk over an order: per weight, per offload interval, per pending delete.

    here, fresh: the weight is on the device; its copy on the host is up to date.
    waiting: the interval in which a weight leaves once its copy to the host is on its way; -1 for none.
    away_in: the interval in which a weight left the device last.
    in_flight: a copy of the weight to the host has not ended yet.
    chosen: the interval is one of the order's.
    pending_size: bytes of a pending delete.
    stored, fetched, pending_copy: the newest copy, counted from the first iteration; -1 for none.
    iteration: for the clock.
    """

    here: NDArray[np.bool_]
    fresh: NDArray[np.bool_]
    waiting: Ints
    away_in: Ints
    stored: Ints
    in_flight: NDArray[np.bool_]
    fetched: Ints
    chosen: NDArray[np.bool_]
    pending_size: Ints
    pending_copy: Ints
    iteration: IterationTables


def scratch(facts: Facts) -> Scratch:
    weights, intervals = len(facts.size), len(facts.weight)
    room, rows = 2 * intervals + 2, len(facts.seconds) + len(facts.changed) + intervals
    return Scratch(
        here=np.ones(weights, np.bool_),
        fresh=np.zeros(weights, np.bool_),
        waiting=np.full(weights, -1, np.int64),
        away_in=np.full(weights, -1, np.int64),
        stored=np.full(weights, -1, np.int64),
        in_flight=np.zeros(weights, np.bool_),
        fetched=np.full(intervals, -1, np.int64),
        chosen=np.zeros(intervals, np.bool_),
        pending_size=np.zeros(room, np.int64),
        pending_copy=np.zeros(room, np.int64),
        iteration=IterationTables(
            rows=np.zeros((rows, COLUMNS), np.int64),
            seconds=np.zeros((rows, WAIT + 1)),
            events=np.zeros(0, np.int64),
            size=np.zeros((0, 3), np.int64),
            counts=np.zeros(3, np.int64),
            lanes=facts.lanes,
            parts=facts.parts,
            first=np.zeros(rows + 1, np.int64),
            waits=np.zeros(2 * rows, np.int64),
        ),
    )
