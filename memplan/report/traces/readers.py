"""Steps that read what a transfer has brought.

H2D       [x]─────┐                a copy is read until it is deleted, recomputed or changed in place;
compute       F1  └▶[B1]           by the next iteration too
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ...planner.schedule.schedule import DEFAULT_MODE, Schedule, Verb
from ...planner.simulator.clock import source_of, transfer_queue


class Reading(NamedTuple):
    """A read of a transferred copy. transfer, reader: steps. next: the reader is in the next iteration."""

    transfer: int
    reader: int
    next: bool


def readings(graph: Graph, schedule: Schedule) -> Iterator[Reading]:
    """Yield the reads in one iteration of a valid schedule, by reader, followed by those in the next."""
    brought: dict[tuple[int, int], int] = {}
    for later in (False, True):
        for step, (verb, target, where) in enumerate(schedule.rows()):
            for copy in read_by(graph, verb, target, where):
                if copy in brought:
                    yield Reading(brought[copy], step, later)
            for copy in _changed_by(graph, verb, target, where):
                brought.pop(copy, None)
            # Verbs above DELETE are transfers; those of the second pass belong to the next iteration.
            if not later and verb > Verb.DELETE:
                brought[where, target] = step


def read_by(graph: Graph, verb: int, target: int, where: int) -> list[tuple[int, int]]:
    """Return the copies that a step reads: memory and tensor."""
    if verb == Verb.DELETE:
        return []
    if verb != Verb.COMPUTE:
        return [(source_of(transfer_queue(verb, where)), target)]
    memory = Memory.HOST if graph.on_host(target, where) else Memory.DEVICE
    direct = () if where == DEFAULT_MODE else graph.operations.modes[target][where - 1].reads_host
    on_host = {*direct, *graph.on_peers(target)}
    return [
        (Memory.HOST if x in on_host else memory, x)
        for x in (*graph.read_lists[target], *graph.mutate_lists[target])
    ]


def _changed_by(graph: Graph, verb: int, target: int, where: int) -> Iterator[tuple[int, int]]:
    """Yield the copies that a step overwrites, so that they are no longer the ones that were brought."""
    if verb != Verb.COMPUTE:
        yield where, target
        return
    below = graph.made_on_host(target, where)
    memory = Memory.HOST if graph.on_host(target, where) else Memory.DEVICE
    for x, _bit in graph.contributions(target, where):
        yield (Memory.HOST if x in below else Memory.DEVICE), x
    shares = graph.on_peers(target)
    for x in graph.mutate_lists[target]:
        yield (Memory.PEERS if x in shares else memory), x
