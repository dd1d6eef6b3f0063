"""Modes in which operations read their weights where they lie in host memory, or write gradients there.

A kernel can read pinned host memory over the link (direct host access), so a weight that is read once need
not come to the device first. How long that takes is the larger of the operation's own time and of what it
reads over the link's rate; a lookup (an embedding's rows) reads no more than it writes. The mode is what a
profile on the machine would measure better: matrix products read a weight more than once where it exceeds
their caches (`rereads`).

In the same way a kernel can write into pinned host memory: the gradients of weights then take no memory of
the device. That takes the larger of the operation's own time and of what it writes over the link's rate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
from memplan.graphs.graph import Graph, Kind, Mode, Operation, Phase

DIRECT = "dha"
"""The mode's name, as the literature abbreviates direct host access."""

WRITTEN = "go"
"""The name of a mode with its gradients written to the host, after GO-MemFerry."""


def with_direct_access(
    graph: Graph,
    rate: float,
    *,
    phases: Collection[Phase] = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD),
    rereads: float = 1.0,
) -> Graph:
    """The graph with a mode `dha` for every operation of these phases that reads weights, and one beside each
    of its modes on the device (`fast-forward-dha`).

    rate: bytes/s at which the device reads host memory. rereads: how often each byte comes over the link,
    lookups excepted. Modes that are there stay, under their numbers.
    """
    kind = graph.tensors.kind
    modes = dict(graph.operations.modes)
    for index in range(len(graph.operations)):
        operation = graph.operation(index)
        weights = tuple(x for x in operation.reads if kind[x] == Kind.PARAMETER)
        if weights and operation.phase in phases:
            read = _bytes_read(graph, operation, weights, rereads) / rate
            known = {mode.name for mode in operation.modes}
            direct = [mode for mode in _direct(operation, weights, read) if mode.name not in known]
            modes[index] = (*operation.modes, *direct)
    return replace(graph, operations=replace(graph.operations, modes=modes))


def with_direct_gradients(graph: Graph, rate: float, *, rewrites: float = 1.0) -> Graph:
    """The graph with a mode `go` for every backward operation that makes gradients of weights, in which it
    writes these to the host, and one beside each of its modes on the device (`dha-go`).

    rate: bytes/s at which the device writes host memory. rewrites: how often each byte goes over the link.
    Modes that are there stay, under their numbers. After GO-MemFerry (memferry.py in solvers).
    """
    kind = graph.tensors.kind
    modes = dict(graph.operations.modes)
    for index in np.flatnonzero(graph.operations.phase == Phase.BACKWARD).tolist():
        operation = graph.operation(index)
        known = {mode.name for mode in operation.modes}
        baseline = Mode("", operation.time, operation.workspace, operation.writes, launch=operation.launch)
        for mode in (baseline, *(mode for mode in operation.modes if not (mode.on_host or mode.writes_host))):
            gradients = tuple(x for x in mode.writes if kind[x] == Kind.PARAMETER_GRADIENT)
            name = f"{mode.name}-{WRITTEN}".lstrip("-")
            if gradients and name not in known:
                written = float(graph.tensors.bytes[list(gradients)].sum()) * rewrites
                time = max(mode.time, written / rate)
                mode = replace(mode, name=name, time=time, writes_host=gradients)
                modes[index] = (*modes.get(index, ()), mode)
    return replace(graph, operations=replace(graph.operations, modes=modes))


def _direct(operation: Operation, weights: tuple[int, ...], seconds: float) -> Iterator[Mode]:
    """seconds: that reading the weights takes at least."""
    longer = max(operation.time, seconds)
    yield Mode(DIRECT, longer, operation.workspace, operation.writes, weights, launch=operation.launch)
    for mode in operation.modes:
        if not (mode.on_host or mode.reads_host):
            name, time = f"{mode.name}-{DIRECT}", max(mode.time, seconds)
            yield replace(mode, name=name, time=time, reads_host=weights)


def _bytes_read(graph: Graph, operation: Operation, weights: tuple[int, ...], rereads: float) -> float:
    sizes = graph.tensors.bytes
    if is_lookup(operation):
        return float(min(sizes[list(weights)].sum(), sizes[list(operation.writes)].sum()))
    return float(sizes[list(weights)].sum()) * rereads


def is_lookup(operation: Operation) -> bool:
    """It reads a few rows of its weight: the forward part of an embedding."""
    return operation.phase == Phase.FORWARD and "embed" in f"{operation.name} {operation.layer or ''}".lower()
