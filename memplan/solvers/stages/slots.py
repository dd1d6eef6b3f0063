"""Schedules in stages: stage t ends with the first run of operation t, and first runs keep the traced order.

Before that first run, any of the operations 0 … t − 1 may be recomputed, each at most once and in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Floats
from ...graphs.graph import Graph
from ...planner.schedule.schedule import DEFAULT_MODE
from ...planner.schedule.sequence import Run

Slot = tuple[int, int]
"""Stage and operation: where an operation may run. Slots come in this order."""


@dataclass(frozen=True)
class DeviceVariant:
    """An execution variant of an operation on the device alone.

    time, launch: seconds.
    workspace: bytes.
    """

    mode: int
    time: float
    workspace: int
    writes: tuple[int, ...]
    launch: float = 0.0


def variants_of(graph: Graph, operation: int) -> list[DeviceVariant]:
    """Return the operation's execution variants on the device, the baseline one first."""
    default = graph.operation(operation)
    return [DeviceVariant(DEFAULT_MODE, default.time, default.workspace, default.writes, default.launch)] + [
        DeviceVariant(number, mode.time, mode.workspace, mode.writes, mode.launch)
        for number, mode in enumerate(default.modes, 1)
        if not mode.uses_host
    ]


def has_faster_variants(graph: Graph) -> bool:
    """Tell whether variants make or launch an operation's needed outputs faster than the baseline does."""
    is_needed = needed_tensors(graph)
    for operation in graph.operations.modes:
        variants = variants_of(graph, operation)
        needed = [x for x in variants[0].writes if is_needed[x]]
        # Several variants may each make a part: only the slowest part counts.
        producers = [[variant for variant in variants if x in variant.writes] for x in needed] or [variants]
        if max(min(variant.time for variant in row) for row in producers) < variants[0].time:
            return True
        if max(min(variant.launch for variant in row) for row in producers) < variants[0].launch:
            return True
    return False


def needed_tensors(graph: Graph) -> NDArray[np.bool_]:
    """Tell per tensor whether an operation reads or changes it, or it is a result."""
    needed = (graph.consumers.counts() > 0) | (graph.mutators.counts() > 0)
    needed[list(graph.results)] = True
    return needed


def slots_of(last: Sequence[int]) -> Iterator[Slot]:
    """Yield all slots, stage by stage.

    last: as from `last_stages`.
    """
    for stage in range(len(last)):
        for operation in range(stage + 1):
            if stage <= last[operation]:
                yield stage, operation


def last_stages(graph: Graph) -> list[int]:
    """Return per operation the last stage in which it may run, and something later may use what it makes.

    An operation runs in its own stage only if it mutates or must not be recomputed, and no later than the
    stage in which a tensor that it touches is changed in place.
    """
    results = set(graph.results)
    count = len(graph.operations)
    last = list(range(count))
    for operation in range(count - 1, -1, -1):  # users come later in traced order: their last stage is known
        if graph.mutate_lists[operation] or not graph.operations.recompute[operation]:
            continue
        written: list[int] = graph.operations.writes[operation].tolist()
        useful = [operation]
        for tensor in written:
            users = [*graph.consumers[tensor].tolist(), *graph.mutators[tensor].tolist()]
            # Its users' last stages count, not their own: they may be recomputed too.
            useful += [count - 1] if tensor in results else [last[user] for user in users]
        changes = [
            change
            for tensor in {*written, *graph.read_lists[operation]}
            for change in graph.mutators[tensor].tolist()
            if change > operation
        ]
        # In the stage of a change it may still run: recomputations precede the stage's own operation.
        last[operation] = min([max(useful), *changes])
    return last


@dataclass(frozen=True)
class RunColumns:
    """The columns of a program that are runs: slot -> (mode, column) pairs."""

    of: Mapping[Slot, Sequence[tuple[int, int]]]

    def sequence(self, x: Floats) -> list[Run]:
        """Return the runs of an answer, in order."""
        return [
            (operation, mode)
            for (_stage, operation), variants in self.of.items()
            for mode, column in variants
            if x[column] > 0.5
        ]

    def values(self, sequence: Sequence[Run]) -> dict[int, float] | None:
        """Return the columns' values for a sequence; None if it is not cut into these stages."""
        x = {column: 0.0 for variants in self.of.values() for _mode, column in variants}
        stage, before = 0, -1
        for operation, mode in sequence:
            columns = dict(self.of.get((stage, operation), ()))
            # In one stage operations run in order, each at most once.
            if operation <= before or mode not in columns:
                return None
            x[columns[mode]] = 1.0
            stage, before = (stage + 1, -1) if operation == stage else (stage, operation)
        return x
