"""What no schedule can pass: a floor on memory and a bound on time, for any order of operations."""

from __future__ import annotations

from math import fsum

import numpy as np
from numpy.typing import NDArray

from ..graphs.adjacency import Adjacency
from ..graphs.graph import Graph
from ..graphs.machine import Machine


def memory_floor(graph: Graph, machine: Machine | None = None) -> int:
    """Device bytes below which no schedule exists, in any order and with any recomputation.

    While operation o runs, its inputs, outputs and workspace are on the device, and so is all that
    never leaves it: the batch, and the persistent tensors unless the machine can move them to the host.
    At the end the results are there too. A mode that reads from, or runs on, the host needs less.
    """
    machine = machine or graph.machine
    links = machine.links if machine else None
    movable = links is not None and links.d2h is not None and links.h2d is not None
    operations, sizes = graph.operations, graph.tensors.bytes
    always = ~graph.persistent & graph.resident if movable else graph.resident
    extra = np.where(always, 0, sizes)
    need = _row_sums(operations.workspace.copy(), operations.reads, extra)
    need = _row_sums(need, operations.writes, extra)
    changed_only = graph.operations.mutates.rows(), graph.operations.mutates.columns
    for operation, tensor in zip(*(column.tolist() for column in changed_only), strict=True):
        if tensor not in graph.read_lists[operation]:
            need[operation] += extra[tensor]
    for operation, modes in operations.modes.items():
        needs = [_mode_need(graph, operation, index, extra) for index in range(len(modes))]
        need[operation] = min(int(need[operation]), *needs)
    results = 0 if movable else int(extra[list(graph.results)].sum())
    return int(sizes[always].sum()) + max(int(need.max(initial=0)), results)


def _row_sums(total: NDArray[np.int64], rows: Adjacency, extra: NDArray[np.int64]) -> NDArray[np.int64]:
    np.add.at(total, rows.rows(), extra[rows.columns])
    return total


def _mode_need(graph: Graph, operation: int, index: int, extra: NDArray[np.int64]) -> int:
    mode = graph.operations.modes[operation][index]
    if mode.on_host:
        return 0
    inputs = set(graph.input_lists[operation]) - set(mode.reads_host)
    return mode.workspace + int(extra[[*inputs, *mode.writes]].sum())


def time_bound(graph: Graph) -> float:
    """Seconds below which no schedule runs: every operation once, each in its fastest way; and each launched
    once, all by one thread.

    The compute queue and the CPU's work side by side, so operations that may run on the host count for
    neither alone: only what must run on the device does.
    """
    seconds: list[float] = graph.operations.time.tolist()
    launches: list[float] = graph.operations.launch.tolist()
    for operation, modes in graph.operations.modes.items():
        ways = [0.0 if mode.on_host else mode.time for mode in modes]
        seconds[operation] = min(seconds[operation], *ways)
        launches[operation] = min(launches[operation], *(mode.launch for mode in modes))
    return max(fsum(seconds), fsum(launches))
