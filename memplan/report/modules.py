"""Cost of each module of the model: time, recomputation time, copied bytes, bytes at the peak."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graphs.arrays import Ints
from ..graphs.graph import Graph
from ..planner.addresses.lifetimes import WORKSPACE, Lifetimes
from ..planner.schedule.schedule import Schedule, Verb

REST = "(no module)"

Row = dict[str, Any]
"""Times in seconds, sizes in bytes."""


def modules(graph: Graph, schedule: Schedule, rows: Lifetimes) -> list[Row]:
    """Return a row per module that an operation or a tensor names, in the order of the graph file."""
    named = [layer or REST for layer in (*graph.operations.layer, *graph.tensors.layer)]
    names = list(dict.fromkeys(named))
    number = {name: place for place, name in enumerate(names)}
    places = np.array([number[name] for name in named], np.int64)
    of_operation, of_tensor = places[: len(graph.operations)], places[len(graph.operations) :]
    seconds, recomputed = np.zeros(len(names)), np.zeros(len(names))
    copied = np.zeros(len(names), np.int64)
    ran: set[int] = set()
    for verb, target, where in schedule.rows():
        if verb == Verb.COMPUTE:
            (recomputed if target in ran else seconds)[of_operation[target]] += graph.seconds(target, where)
            ran.add(target)
        elif verb != Verb.DELETE:
            copied[of_tensor[target]] += graph.tensors.bytes[target]
    held = _at_peak(rows, of_tensor, len(names))
    return [
        dict(zip(("module", "time", "recompute", "copied", "peak"), row, strict=True))
        for row in zip(
            names, *(column.tolist() for column in (seconds, recomputed, copied, held)), strict=True
        )
        if any(row[1:])
    ]


def _at_peak(rows: Lifetimes, of_tensor: Ints, count: int) -> Ints:
    """Return the bytes of each module's tensors when the device holds most."""
    live = rows.live()
    there = np.zeros(count, np.int64)
    if len(live):
        at = int(live.argmax())
        kept = rows.of(rows.tensor != WORKSPACE)
        # add.at: `+=` would count one tensor for each module.
        np.add.at(there, of_tensor[kept.tensor], kept.size * kept.there(at))
    return there
