"""Outcome of each tensor in an iteration: kept, recomputed or offloaded; and when it was where."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..graphs.arrays import Floats, Ints
from ..graphs.graph import Graph
from ..planner.addresses.lifetimes import Lifetimes
from ..planner.schedule.schedule import Schedule, Verb


class TensorOutcome(IntEnum):
    """Outcome of a tensor. KEPT: resident from its production, or from the start, to its last use."""

    KEPT = 0
    RECOMPUTED = 1
    MOVED = 2

    @property
    def word(self) -> str:
        return {
            TensorOutcome.KEPT: "kept",
            TensorOutcome.RECOMPUTED: "recomputed",
            TensorOutcome.MOVED: "offloaded",
        }[self]


def fates(graph: Graph, schedule: Schedule) -> Ints:
    """Return an outcome per tensor. A tensor that is moved and recomputed counts as moved."""
    found = np.full(len(graph.tensors), TensorOutcome.KEPT)
    made = np.zeros(len(graph.tensors), np.int64)
    for verb, target, where in schedule.rows():
        if verb == Verb.COMPUTE:
            made[[x for x, _bit in graph.contributions(target, where)]] += 1
        elif verb != Verb.DELETE:
            found[target] = TensorOutcome.MOVED
    found[(made > graph.producers.counts()) & (found == TensorOutcome.KEPT)] = TensorOutcome.RECOMPUTED
    return found


def recomputed_runs(schedule: Schedule) -> NDArray[np.bool_]:
    """Tell per step whether it recomputes an operation that has run before in the iteration."""
    recomputed = schedule.verbs == Verb.COMPUTE
    places = np.flatnonzero(recomputed)
    # np.unique's indices are those of the first occurrences, the operations' first runs.
    recomputed[places[np.unique(schedule.targets[places], return_index=True)[1]]] = False
    return recomputed


def bars(rows: Lifetimes, passed: Floats, period: float) -> tuple[Floats, Floats]:
    """Return the seconds when each copy is made and freed. passed: of memory_timeline."""
    # An end past the last step is in a later iteration.
    iterations, steps = np.divmod(rows.end, max(1, rows.steps))
    return passed[rows.start], passed[steps] + iterations * period
