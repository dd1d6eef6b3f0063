"""Known schedules in the order of their seconds on a graph, by the compiled replay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ..schedule.schedule import Schedule, Verb
from .clock import MAX_ITERATIONS
from .instance import VariantTable
from .replay import UNASKED, figures_for, replay

_ANY = 2**60
"""Bytes of a device of any size."""


class Replays:
    """The figures of schedules of one graph on one machine, by the compiled replay: hundreds a second.

    The replay knows no rule but memory and time: the simulator has to validate what is taken.
    """

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self._graph, self._variants = graph, VariantTable(graph)
        self._instance = self._variants.instance(machine, _ANY)
        self._capacities = self._instance.limits.copy()
        self._figures = figures_for(self._instance)

    def seconds(self, schedule: Schedule, budget: int) -> float | None:
        """Return the seconds of an iteration within a budget in bytes.

        Returns None if the schedule does not fit, or was made for another machine.
        """
        limits = self._instance.limits
        limits[:] = self._capacities
        limits[Memory.DEVICE] = min(limits[Memory.DEVICE], budget)
        found = self._replayed(schedule)
        return None if found is None or found[1] > 0 else found[0]

    def least_budget(self, schedule: Schedule) -> int | None:
        """Return the smallest budget in bytes with which the schedule holds if other memories have room.

        Returns None if it was made for another machine.
        """
        self._instance.limits[:] = inf
        self._instance.limits[Memory.DEVICE] = 0
        found = self._replayed(schedule)
        return None if found is None else int(found[1])

    def _replayed(self, schedule: Schedule) -> tuple[float, float] | None:
        """Return the seconds, and the bytes above the limits."""
        if schedule.memories > len(self._capacities) - 1:
            return None
        try:
            rows = step_rows(self._variants, schedule)
        except KeyError:  # made for another machine, which has an execution variant more
            return None
        starts = starts_of(self._graph, schedule)
        replay(self._instance, rows, starts, self._figures, UNASKED, MAX_ITERATIONS)
        seconds, excess = self._figures.tolist()[:2]
        return seconds, excess


@lru_cache(4)
def replays_of(graph: Graph, machine: Machine) -> Replays:
    """Return the replays of a graph on a machine, made once for the last few questions."""
    return Replays(graph, machine)


def by_seconds(
    graph: Graph, schedules: Sequence[Schedule], machine: Machine, budget: int
) -> list[Schedule] | None:
    """Return the schedules that fit in a budget by bytes, the fastest first, of equals in the order given.

    The simulator has to validate what is taken. Returns None as long as the replay is not compiled in this
    process: compiling takes longer.
    """
    if not replay.signatures:  # pyright: ignore[reportFunctionMemberAccess]
        return None
    replays = replays_of(graph, machine)
    seconds = [(replays.seconds(schedule, budget), place) for place, schedule in enumerate(schedules)]
    return [
        schedules[place]
        for _time, place in sorted((time, place) for time, place in seconds if time is not None)
    ]


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
