"""Breakdown of the device's peak memory by kind and module, and of time by module.

Layers that repeat are one row: `h.0.attn.c_attn` and `h.5.attn.c_proj` are both of `h.*.attn`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from ..graphs.graph import Graph, Kind
from ..graphs.machine import Machine
from ..planner.addresses.lifetimes import WORKSPACE, lifetimes
from ..planner.schedule.schedule import Schedule, Verb
from .accumulation import is_sum

KINDS = ("weights", "gradients", "optimizer states", "activations", "workspace")
"""The kinds of the breakdown. Activations include their gradients and the batch."""
REST = "(no module)"

_COLUMN = {
    Kind.PARAMETER: 0,
    Kind.BUFFER: 0,
    Kind.PARAMETER_GRADIENT: 1,
    Kind.OPTIMIZER_STATE: 2,
    Kind.ACTIVATION: 3,
    Kind.GRADIENT: 3,
    Kind.INPUT: 3,
}
_GRADIENTS, _WORKSPACE = 1, 4
_DEPTH = 3


class MemoryShare(NamedTuple):
    """The share of one module.

    sizes: bytes at the peak, for each of KINDS. seconds: of all its runs, on the GPU or the CPU.
    """

    name: str
    sizes: tuple[int, ...]
    seconds: float

    @property
    def total(self) -> int:
        return sum(self.sizes)


class Breakdown(NamedTuple):
    """The shares of all modules, largest first, and of the whole, their sum."""

    whole: MemoryShare
    modules: tuple[MemoryShare, ...]


def breakdown(graph: Graph, schedule: Schedule, budget: int, machine: Machine) -> Breakdown:
    """Compute the breakdown of a schedule at its peak.

    budget: bytes that the schedule fits in. machine: with a device of any size.
    """
    rows = lifetimes(graph, schedule, budget=budget, machine=machine)
    live = rows.live()
    # The first of several equal peaks.
    at = int(live.argmax()) if len(live) else 0
    sizes: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(KINDS))
    seconds: defaultdict[str, float] = defaultdict(float)
    steps = list(schedule.rows())
    columns = [_COLUMN[Kind(kind)] for kind in graph.tensors.kind.tolist()]
    for x in np.flatnonzero(is_sum(graph)).tolist():
        # Sums of micro-batches have the kind of a state, so that plans may offload them.
        columns[x] = _GRADIENTS
    # As often as it has copies then: that of the iteration before may still be there.
    for row in np.repeat(np.arange(len(rows.size)), rows.there(at)).tolist():
        x, size = int(rows.tensor[row]), int(rows.size[row])
        if x == WORKSPACE:
            sizes[_module(graph.operations.layer[steps[at][1]])][_WORKSPACE] += size
        else:
            sizes[_module(graph.tensors.layer[x])][columns[x]] += size
    for verb, target, where in steps:
        if verb == Verb.COMPUTE:
            seconds[_module(graph.operations.layer[target])] += graph.seconds(target, where)
    names = dict.fromkeys([*sizes, *seconds])
    parts = [MemoryShare(name, tuple(sizes[name]), seconds[name]) for name in names]
    totals = zip(*(part.sizes for part in parts), strict=True)
    whole = MemoryShare(
        "all", tuple(map(sum, totals)) or (0,) * len(KINDS), sum(part.seconds for part in parts)
    )
    return Breakdown(whole, tuple(sorted(parts, key=lambda part: (-part.total, -part.seconds))))


def _module(layer: str | None) -> str:
    """Return the name of the row for a layer, with numbers replaced by stars.

    It ends one component after the first number; without a number it has at most _DEPTH components.
    """
    if not layer:
        return REST
    parts = ["*" if part.isdecimal() else part for part in layer.split(".")]
    # h.*.attn, not h.*: one row per layer would say nothing of what is large in it.
    depth = parts.index("*") + 2 if "*" in parts else _DEPTH
    return ".".join(parts[:depth])
