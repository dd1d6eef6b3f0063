"""A graph on a machine as flat arrays, for the compiled replay of its schedules.

A *variant* is an operation in one of its modes, on the device or on the host; its number stands for
(operation, mode).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from ...graphs.graph import Graph, Kind
from ...graphs.machine import Machine, Memory
from ..schedule.sequence import Run
from ..simulator.clock import Queue, lanes_of, link_of, read_queue
from ..simulator.footprint import Footprint

MOST_BITS = 62
"""Contributions to one tensor that are distinguished; any more share the last bit."""


class Instance(NamedTuple):
    """The arrays of a graph on a machine.

    variants: (seconds, launch, workspace, host, comm, reads_…, host_reads_…, writes_…, host_writes_…,
    mutates_…), with `…_start` and `…_end` as indices into `members`; writes are pairs (tensor, its
    contribution as a bit), host_writes the pairs that an execution variant on the device produces in host
    memory.
    tensors: (size, whole, persistent, input, spread, share, saves); a spread one takes `share` bytes of the
    device while it has a copy on the peers, which is the memory below the device for it. It saves so many
    seconds if it joins a collective (planner/simulator/collectives.py), 0 if it never does.
    limits: bytes per memory; the last entry is for pinned memory.
    copies: seconds, by queue of the direction, tensor. lanes, parts: from `lanes_of`, shape
    (queues, most lanes of one); a lane of -1 is none.
    """

    variants: Any
    tensors: Any
    members: Ints
    limits: NDArray[np.float64]
    copies: NDArray[np.float64]
    lanes: Ints
    parts: NDArray[np.float64]


_LISTS = ("reads", "host_reads", "writes", "host_writes", "mutates")
_VARIANT = np.dtype(
    [("seconds", np.float64), ("launch", np.float64), ("workspace", np.int64)]
    + [("host", np.bool_), ("comm", np.bool_)]
    + [(f"{name}_{end}", np.int64) for name in _LISTS for end in ("start", "end")]
)
_TENSOR = np.dtype(
    [("size", np.int64), ("whole", np.int64)]
    + [(name, np.bool_) for name in ("persistent", "input", "spread")]
    + [("share", np.int64), ("saves", np.float64)]
)


class VariantTable:
    """The execution variants of a graph's operations: number[operation, mode]."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.runs: list[Run] = []
        for operation in range(len(graph.operations)):
            self.runs.append((operation, 0))
            count = len(graph.operations.modes.get(operation, ()))
            self.runs += [(operation, index + 1) for index in range(count)]
        self.number = {run: index for index, run in enumerate(self.runs)}

    def instance(self, machine: Machine, budget: int) -> Instance:
        graph, members = self.graph, list[int]()
        variants = np.zeros(len(self.runs), _VARIANT)
        for row, (operation, index) in zip(variants, self.runs, strict=True):
            mode = graph.operations.modes[operation][index - 1] if index else None
            row["seconds"] = graph.seconds(operation, index)
            row["launch"] = graph.launch(operation, index)
            row["workspace"] = graph.workspace(operation, index)
            row["host"] = mode is not None and mode.on_host
            row["comm"] = operation in graph.operations.comm
            # Reads of copies in the memory below: the host's, or the peers'.
            below = {*(mode.reads_host if mode is not None else ()), *graph.on_peers(operation)}
            mutates = graph.mutate_lists[operation]
            inputs = dict.fromkeys(graph.read_lists[operation] + mutates)
            # What the device writes into host memory by itself is a row of its own (`_rows_of` in replay.py).
            direct = set(mode.writes_host) if mode is not None else set[int]()
            made = [(x, min(bit, 1 << MOST_BITS)) for x, bit in graph.contributions(operation, index)]
            for name, values in (
                ("reads", [x for x in inputs if x not in below]),
                ("host_reads", [x for x in inputs if x in below]),
                ("writes", [part for pair in made if pair[0] not in direct for part in pair]),
                ("host_writes", [part for pair in made if pair[0] in direct for part in pair]),
                ("mutates", mutates),
            ):
                _append(members, row, name, values)
        lanes, parts = lane_arrays(machine)
        return Instance(
            variants=variants,
            tensors=_tensors(graph, machine),
            members=np.array(members, np.int64),
            limits=_limits(machine, budget),
            copies=_copies(graph, machine),
            lanes=lanes,
            parts=parts,
        )


def lane_arrays(machine: Machine) -> tuple[Ints, NDArray[np.float64]]:
    """Return the lanes of each queue and their parts, as in an `Instance`."""
    taken = lanes_of(machine.hierarchy)
    shape = len(taken), max(map(len, taken))
    lanes, parts = np.full(shape, -1, np.int64), np.zeros(shape)
    for queue, row in enumerate(taken):
        for k, (lane, part) in enumerate(row):
            lanes[queue, k], parts[queue, k] = lane, part
    return lanes, parts


def _append(members: list[int], row: Any, name: str, values: Iterable[int]) -> None:
    row[f"{name}_start"] = len(members)
    members.extend(values)
    row[f"{name}_end"] = len(members)


def _tensors(graph: Graph, machine: Machine) -> Any:
    records = np.zeros(len(graph.tensors), _TENSOR)
    records["size"] = graph.tensors.bytes
    records["whole"] = [min(whole, (1 << (MOST_BITS + 1)) - 1) for whole in graph.whole_contributions]
    records["persistent"] = graph.persistent
    records["input"] = graph.tensors.kind == Kind.INPUT
    records["spread"], records["share"] = graph.spread, graph.tensors.bytes
    for x, share in Footprint(graph, machine.hierarchy).shares.items():
        # Overwrites the tensor's bytes for spread tensors alone.
        records["share"][x] = share
    if (peers := machine.links.peers) is not None:
        # gradients are scattered alone, all else is gathered alone
        gradients = graph.tensors.kind == Kind.PARAMETER_GRADIENT
        for link, moved in ((peers.scatters, gradients), (peers, ~gradients)):
            saves = link.joins(graph.tensors.bytes.astype(np.float64)) * link.latency
            records["saves"] = np.where(graph.spread & moved, saves, records["saves"])
    return records


def _limits(machine: Machine, budget: int) -> NDArray[np.float64]:
    capacities = [tier.capacity for tier in machine.hierarchy.tiers]
    pinned = None if machine.unpinned else machine.crossing_capacity
    limits = np.array([inf if limit is None else limit for limit in (*capacities, pinned)], np.float64)
    limits[Memory.DEVICE] = min(limits[Memory.DEVICE], budget)
    return limits


def _copies(graph: Graph, machine: Machine) -> NDArray[np.float64]:
    """Return seconds by queue and tensor, ∞ if the machine has no link. Computing queues have none."""
    queues = range(Queue.D2H, read_queue(len(machine.hierarchy) - 1))
    seconds = np.full((queues.stop, len(graph.tensors)), inf)
    for queue in queues:
        if link := link_of(machine.hierarchy, queue):
            seconds[queue] = link.seconds(graph.tensors.bytes.astype(np.float64))
    spread = graph.spread
    for queue in (Queue.D2H, Queue.H2D) if spread.any() else ():
        link = link_of(machine.hierarchy, queue, spread=True)
        sizes = graph.tensors.bytes[spread].astype(np.float64)
        seconds[queue, spread] = inf if link is None else link.seconds(sizes)
    return seconds
