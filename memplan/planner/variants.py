"""Execution variants that some schedule on a machine can run, for minimums, bounds, solvers and messages.

A variant that runs on the host, or reads or writes there, needs its tensors there. A persistent tensor may
start there, any other needs a link or a producer that writes it there:

    no link:  F, B on the device ──▶ gradient on the device ──✗── host variant of the update

What is left out can be run by no schedule. What is left in may be too expensive, or too large for a budget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..graphs.graph import Graph, Mode
from ..graphs.machine import Machine, Memory

Numbers = Mapping[int, tuple[int, ...]]
"""Per operation with variants, the numbers (from 1) of some of them, ascending."""


def uses_host(graph: Graph) -> bool:
    """Tell whether some operation has an execution variant that uses the host."""
    variants = (mode for modes in graph.operations.modes.values() for mode in modes)
    return any(mode.uses_host for mode in variants)


def runnable_variants(graph: Graph, machine: Machine | None = None) -> Numbers:
    """Return the variants that a schedule on the machine, by default the graph's, can run.

    Those that need what only left-out ones produce are left out too, until none is.
    """
    machine = machine or graph.machine or Machine()
    modes = graph.operations.modes
    found = {o: tuple(range(1, len(variants) + 1)) for o, variants in modes.items()}
    while uses_host(kept := keep_variants(graph, found)):
        reach = _HostReach(kept, machine)
        left = {
            o: tuple(number for number in numbers if reach.can_run(o, modes[o][number - 1]))
            for o, numbers in found.items()
        }
        if left == found:
            break
        found = left
    return found


def keep_variants(graph: Graph, numbers: Numbers) -> Graph:
    """Return the graph with these variants of its operations alone; the same object if these are all."""
    modes = graph.operations.modes
    if all(len(numbers.get(o, ())) == len(variants) for o, variants in modes.items()):
        return graph
    kept = {o: tuple(modes[o][number - 1] for number in row) for o, row in numbers.items() if row}
    operations = replace(graph.operations, modes=kept)
    return replace(graph, operations=operations).share_structure(graph)


def runnable(graph: Graph, machine: Machine | None = None) -> Graph:
    """Return the graph without variants that no schedule on the machine can run."""
    if not uses_host(graph):
        return graph
    return keep_variants(graph, runnable_variants(graph, machine))


def host_bytes(graph: Graph, operation: int, mode: Mode) -> int:
    """Return the bytes of host memory without which a variant of an operation cannot run."""
    return _bytes_on_host(graph, mode, used_on_host(graph, operation, mode))


def _bytes_on_host(graph: Graph, mode: Mode, used: Collection[int]) -> int:
    return int(graph.tensors.bytes[[*used]].sum()) + (mode.workspace if mode.on_host else 0)


def used_on_host(graph: Graph, operation: int, mode: Mode) -> set[int]:
    """Return the tensors that a variant of an operation reads or writes in host memory."""
    inputs = graph.input_lists[operation] if mode.on_host else mode.reads_host
    return {*inputs, *mode.made_on_host}


class _HostReach:
    """Tensors that can be in host memory, by the variants that a graph has."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self._graph, self._machine = graph, machine
        self._capacity = machine.hierarchy.tiers[Memory.HOST].capacity
        self._changed: set[int] = set(np.flatnonzero(graph.mutators.counts()).tolist())
        self._on_cpu = {o for o, modes in graph.operations.modes.items() if any(m.on_host for m in modes)}
        self._below = made_below(graph)
        # Without a link to the device these are there by themselves: produced there, or always there.
        self._needed: set[int] = set()
        if machine.links.h2d is None:
            self._needed.update(np.flatnonzero(needed_on_device(graph)).tolist())

    def can_run(self, operation: int, mode: Mode) -> bool:
        """Tell whether all that the variant uses in host memory can be there."""
        if not mode.uses_host:
            return True
        graph = self._graph
        used = used_on_host(graph, operation, mode)
        if self._capacity is not None and _bytes_on_host(graph, mode, used) > self._capacity:
            return False
        if self._machine.unpinned and not mode.on_host:  # the device uses pinned memory alone
            return False
        if mode.on_host and not self._needed.isdisjoint(graph.mutate_lists[operation]):
            return False  # the copy on the device would be stale, and nothing could refresh it
        once = not graph.operations.recompute[operation] or graph.mutate_lists[operation]
        if once and not self._needed.isdisjoint(mode.made_on_host):
            return False  # no other run produces it on the device
        return all(self._reaches_host(x) for x in used.difference(mode.made_on_host))

    def _reaches_host(self, x: int) -> bool:
        if self._machine.links.d2h is not None:
            return True
        graph = self._graph
        if not graph.persistent[x]:
            return x in self._below
        # It ends where it began, so whatever changes it has to change it there.
        return x not in self._changed or self._on_cpu.issuperset(graph.mutators[x].tolist())


def made_below(graph: Graph) -> set[int]:
    """Return the tensors of which each contribution can be produced in host memory."""
    rows = graph.operations.modes.items()
    below = {o: {x for mode in modes for x in mode.made_on_host} for o, modes in rows}
    candidates = {x for made in below.values() for x in made}

    def everywhere(operations: Iterable[int], x: int) -> bool:
        return all(x in below.get(o, ()) for o in operations)

    return {x for x in candidates if everywhere(graph.producers[x].tolist(), x)}


def needed_on_device(graph: Graph) -> NDArray[np.bool_]:
    """Return per tensor whether some operation reads or changes it on the device in each of its variants."""
    operations = graph.operations
    needed = np.zeros(len(graph.tensors), np.bool_)
    for columns in (operations.reads, operations.mutates):
        spared = np.zeros(len(columns.columns), np.bool_)
        for operation, modes in operations.modes.items():
            row = slice(columns.start[operation], columns.start[operation + 1])
            for mode in modes:
                if mode.on_host or mode.reads_host:
                    spared[row] |= mode.on_host or np.isin(columns.columns[row], mode.reads_host)
        needed[columns.columns[~spared]] = True
    return needed
