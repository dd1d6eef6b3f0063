"""Lower bounds that no schedule can pass: minimum memory, and time."""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graphs.adjacency import Adjacency
from ..graphs.graph import Graph, Mode, Phase
from ..graphs.machine import Links, Machine, Memory
from .simulator.footprint import Footprint
from .variants import made_below, needed_on_device, runnable, uses_host

Ints = NDArray[np.int64]


def minimum_memory(graph: Graph, machine: Machine | None = None) -> int:
    """Return the minimum memory: device bytes below which no schedule exists, in any order, with
    recomputation.

    While operation o runs, its inputs, outputs and workspace are on the device, and so is all that never
    leaves it: the batch, its shares of spread weights and states, what stays there, and, if nothing comes
    from the host, the persistent tensors that some operation needs there in each of its modes; others may be
    on the host throughout. At the end the results are there too, if nothing goes to the host and no mode
    produces them there. A mode that reads or writes host memory, or runs on the host, needs less, if some
    schedule can run it (variants.py). If the graph has only one schedule, its peak counts.
    """
    machine = machine or graph.machine or Machine()
    graph, links = runnable(graph, machine), machine.links
    if links == Links() and has_one_schedule(graph):
        return _once_peak(graph, graph, machine)
    always = _always_there(graph, machine)
    extra = np.where(always, 0, graph.tensors.bytes)
    # Spans of no operation: nothing is held apart from what an operation itself touches.
    need = _needs(graph, extra, _Spans.none(graph), brought=links.h2d is not None)
    below = made_below(graph)
    held = set(graph.results) if links.d2h is None else graph.tensors.stays.intersection(graph.results)
    stay = [x for x in held if x not in below]
    results = int(extra[[x for x in stay if x not in graph.tensors.spread]].sum())
    shares = Footprint(graph, machine.hierarchy).shares
    for update in np.flatnonzero(graph.operations.phase == Phase.UPDATE).tolist() if shares else ():
        used = graph.on_peers(update)
        # An update uses shares of spread tensors, not the full copies that `_needs` has counted.
        need[update] += sum(shares[x] for x in used if not graph.persistent[x]) - int(extra[list(used)].sum())
    always_there = sum(share for x, share in shares.items() if graph.persistent[x])
    return always_there + int(graph.tensors.bytes[always].sum()) + max(int(need.max(initial=0)), results)


def least_memory(graph: Graph) -> int:
    """Return the device bytes below which no schedule exists on any machine, with links of whatever rates."""
    peers = graph.machine.links.peers if graph.machine else None
    # Any rate will do: only whether there is a link counts.
    return minimum_memory(graph, Machine(links=Links(1.0, 1.0, peers=peers)))


def offloads(machine: Machine | None) -> bool:
    """Tell whether `minimum_memory` assumes that tensors can leave the device, or come to it: there is a
    link."""
    return machine is not None and not (machine.links.d2h is None and machine.links.h2d is None)


def minimum_memory_once(graph: Graph, machine: Machine | None = None) -> int | None:
    """Return the minimum memory without repeated backward operations, in traced order; None if not stricter.

    These are device bytes below which no schedule exists that runs no backward operation and no update twice,
    and all operations for the first time in traced order. The bound is not stricter than `minimum_memory`, or
    not known, without backward operations, with links, or if an operation can run in a variant that uses the
    host.

    To what `minimum_memory` counts while operation o runs, add each tensor with a contribution that has been
    produced by then, cannot be recomputed, and is still to be used: its copy is resident, since nothing can
    bring it back. A contribution cannot be recomputed if its operation runs once, or touches what has been
    changed in place since. O(edges · log edges), from the changes in place; O(edges) without.

    The bound is memplan's own. For any order see solvers/bounds/residency, on `backward_once` of the
    graph.
    """
    machine = machine or graph.machine or Machine()
    linked = bool(graph.tensors.spread) or machine.links != Links()
    if linked or not (graph.operations.phase == Phase.BACKWARD).any():
        return None
    graph = runnable(graph, machine)
    return None if uses_host(graph) else _once_peak(graph, backward_once(graph), machine)


def has_one_schedule(graph: Graph) -> bool:
    """Tell whether, without links, the baseline is the only schedule, up to tensors deleted later than
    needed.

    That is so if no operation may be recomputed or has another variant, and each reads what the one before it
    produces, as in CUDA's snapshots.
    """
    operations = graph.operations
    if operations.recompute.any() or operations.modes or not len(operations):
        return False
    made, used = operations.writes, operations.reads
    producer = np.full(len(graph.tensors), -1)
    producer[made.columns] = made.rows()
    follows = np.zeros(len(operations), np.bool_)
    # Each reads from the one before it, so no other order keeps the dependencies.
    follows[used.rows()[producer[used.columns] == used.rows() - 1]] = True
    return bool(follows[1:].all())


def _once_peak(graph: Graph, once: Graph, machine: Machine) -> int:
    """Return the bound. once: the graph, with `recompute` false for excluded repeats."""
    sizes = np.where(graph.resident, 0, graph.tensors.bytes)
    spans = _Spans.of(once)
    held = np.zeros(len(graph.operations) + 1, np.int64)
    spanning = spans.first <= spans.last
    np.add.at(held, spans.first[spanning], sizes[spanning])
    # A tensor counts while first … last run; the sums below are prefix sums of these changes.
    np.subtract.at(held, spans.last[spanning] + 1, sizes[spanning])
    need = _needs(graph, sizes, spans) + held.cumsum()[:-1]
    always = int(graph.tensors.bytes[_always_there(graph, machine)].sum())
    return always + max(int(need.max(initial=0)), int(sizes[list(graph.results)].sum()))


def backward_once(graph: Graph) -> Graph:
    """Return the graph with backward operations and updates that may not be recomputed."""
    operations = graph.operations
    recompute = operations.recompute & (operations.phase < Phase.BACKWARD)
    return replace(graph, operations=replace(operations, recompute=recompute))


def _always_there(graph: Graph, machine: Machine) -> NDArray[np.bool_]:
    """Return per tensor whether its copy on the device is there all the time; of spread ones none is."""
    stays = ~graph.persistent
    if machine.links.h2d is None:
        stays = stays | needed_on_device(graph)
    capacities = [tier.capacity for tier in machine.hierarchy.tiers[Memory.HOST :]]
    if None not in capacities:  # it fits nowhere else
        stays = stays | (graph.tensors.bytes > max(size or 0 for size in capacities))
    return graph.resident & ~graph.spread & (stays | graph.stays)


class _Spans(NamedTuple):
    """The span in which each tensor must be resident: while operations first to last run, whatever they
    touch."""

    first: Ints
    last: Ints

    @staticmethod
    def none(graph: Graph) -> _Spans:
        count = len(graph.tensors)
        return _Spans(np.full(count, len(graph.operations)), np.full(count, -1))

    @staticmethod
    def of(graph: Graph) -> _Spans:
        """Return spans from the first contribution that cannot be recomputed to the last use.

        A result's span goes to the end.
        """
        first, last = _Spans.none(graph)
        final, writes = _final(graph), graph.operations.writes
        np.minimum.at(first, writes.columns, final[writes.rows()])
        for uses in (graph.operations.reads, graph.operations.mutates):
            np.maximum.at(last, uses.columns, uses.rows())
        last[list(graph.results)] = len(graph.operations) - 1
        return _Spans(first, last)

    def over(self, operation: Ints | int, tensor: NDArray[np.integer]) -> NDArray[np.bool_]:
        return (self.first[tensor] <= operation) & (operation <= self.last[tensor])


def _final(graph: Graph) -> Ints:
    """Return per operation o the operation from whose run on o cannot be recomputed.

    That is o itself if it runs once, else the first operation after it in traced order that changes what it
    touches; the number of operations if there is none.
    """
    operations, count = graph.operations, len(graph.operations)
    once = ~operations.recompute | (operations.mutates.counts() > 0)
    final = np.where(once, np.arange(count), count)
    # Keys tensor · count + row: sorted by tensor, then in traced order, so one search finds the first change
    # after a use.
    changes = np.sort(operations.mutates.columns.astype(np.int64) * count + operations.mutates.rows())
    if len(changes):
        ends = np.append(changes, np.iinfo(np.int64).max)
        for touched in (operations.reads, operations.writes):
            rows, tensors = touched.rows(), touched.columns.astype(np.int64)
            following = ends[np.searchsorted(changes, tensors * count + rows, side="right")]
            same = following // count == tensors
            np.minimum.at(final, rows[same], following[same] % count)
    return final


def _needs(graph: Graph, extra: Ints, spans: _Spans, *, brought: bool = False) -> Ints:
    """Return per operation the bytes of workspace, inputs and outputs, in the variant in which they are
    least.

    extra: per tensor, the bytes to count; nothing is counted for tensors that the spans include.
    brought: whether tensors come from the host; else what is needed on the device is produced there.
    """
    operations = graph.operations

    def add(rows: Ints, tensors: NDArray[np.integer]) -> None:
        np.add.at(need, rows, np.where(spans.over(rows, tensors), 0, extra[tensors]))

    need = operations.workspace.copy()
    add(operations.reads.rows(), operations.reads.columns)
    add(operations.writes.rows(), operations.writes.columns)
    add(*_changed_only(graph))
    if not operations.modes:
        return need
    columns = _Columns(extra.tolist(), spans.first.tolist(), spans.last.tolist())
    needed = np.zeros(len(graph.tensors), np.bool_) if brought else needed_on_device(graph)
    for operation, modes in operations.modes.items():
        # What must be made on the device can't be left to a mode that makes it on the host.
        enough = (mode for mode in modes if not needed[[*mode.made_on_host]].any())
        variants = (_mode_need(graph, operation, mode, columns) for mode in enough)
        need[operation] = min([int(need[operation]), *variants])
    return need


class _Columns(NamedTuple):
    """Bytes to count and spans as lists, which are read fastest one by one."""

    extra: list[int]
    first: list[int]
    last: list[int]


def _mode_need(graph: Graph, operation: int, mode: Mode, columns: _Columns) -> int:
    if mode.on_host:
        return 0
    extra, first, last = columns
    tensors = (
        *{*graph.input_lists[operation]}.difference(mode.reads_host),
        *{*mode.writes}.difference(mode.writes_host),
    )
    return mode.workspace + sum(extra[x] for x in tensors if not first[x] <= operation <= last[x])


def _changed_only(graph: Graph) -> tuple[Ints, NDArray[np.integer]]:
    """Return operations and the tensors that they change without reading them, as pairs of arrays."""
    mutates: Adjacency = graph.operations.mutates
    pairs = zip(mutates.rows().tolist(), mutates.columns.tolist(), strict=True)
    only = [(o, x) for o, x in pairs if x not in graph.operations.reads[o]]
    found = np.array(only, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def time_bound(graph: Graph) -> float:
    """Return the seconds below which no schedule runs.

    Every operation runs once, in its fastest variant; and each is launched once, all by one thread.

    The compute queue and the CPU work side by side, so operations that may run on the host count for
    neither alone: only what must run on the device does. Collectives have a queue of their own too. Rounded
    to the nearest float, as the simulator rounds the time of a schedule that runs each once: rounding keeps
    the order of the two.
    """
    seconds: list[float] = graph.operations.time.tolist()
    launches: list[float] = graph.operations.launch.tolist()
    for operation, modes in graph.operations.modes.items():
        # On the host it takes none of the device's time, and the CPU's is no bound: it runs side by side.
        variants = [0.0 if mode.on_host else mode.time for mode in modes]
        seconds[operation] = min(seconds[operation], *variants)
        launches[operation] = min(launches[operation], *(mode.launch for mode in modes))
    network = [seconds[operation] for operation in graph.operations.comm]
    for operation in graph.operations.comm:
        seconds[operation] = 0.0
    return max(fsum(seconds), fsum(network), fsum(launches))
