"""Known schedules in the order of their seconds on a graph, by the compiled replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ..replay.clock import MAX_ITERATIONS
from ..replay.instance import VariantTable
from ..replay.replay import UNASKED, figures_for, replay
from ..schedule.schedule import Schedule, Verb


def by_seconds(
    graph: Graph, schedules: Sequence[Schedule], machine: Machine, budget: int
) -> list[Schedule] | None:
    """Return the schedules that fit in a budget by bytes, the fastest first, of equals in the order given.

    The replay knows no rule but memory and time: the simulator has to validate what is taken.

    Returns None as long as the replay is not compiled in this process: compiling takes longer.
    """
    if not replay.signatures:  # pyright: ignore[reportFunctionMemberAccess]
        return None
    variants = VariantTable(graph)
    instance = variants.instance(machine, budget)
    figures = figures_for(instance)
    found: list[tuple[float, int]] = []
    for place, schedule in enumerate(schedules):
        if schedule.memories > len(instance.limits) - 1:
            continue
        try:
            rows = step_rows(variants, schedule)
        except KeyError:  # made for another machine, which has an execution variant more
            continue
        replay(instance, rows, starts_of(graph, schedule), figures, UNASKED, MAX_ITERATIONS)
        seconds, excess = figures.tolist()[:2]
        if excess <= 0:
            found.append((seconds, place))
    return [schedules[place] for _seconds, place in sorted(found)]


def step_rows(variants: VariantTable, schedule: Schedule) -> Ints:
    """Return a schedule's steps as the rows (verb, variant or tensor, memory) that `replay` reads.

    Raises KeyError if it has an execution variant that the graph has not.
    """
    table = np.stack([schedule.verbs, schedule.targets, schedule.wheres], axis=1).astype(np.int64)
    computes = np.flatnonzero(table[:, 0] == Verb.COMPUTE)
    table[computes, 1] = [variants.number[run] for run in map(tuple, table[computes, 1:].tolist())]
    return table


def starts_of(graph: Graph, schedule: Schedule) -> NDArray[np.uint8]:
    """Return per tensor the memories in which an iteration starts with it, as bits from 1, the device."""
    bits = np.where(graph.resident, 1, 0).astype(np.uint8)
    for memories, tensors in schedule.initial.groups:
        bits[list(tensors)] = sum(1 << memory for memory in memories)
    return bits
