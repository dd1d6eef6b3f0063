"""Graph and machine updated by the times that iterations took, and measures of how far these have drifted.

Only times change: what an operation reads, writes and needs of memory stays, so a schedule that was valid for
the earlier graph is valid for this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum

import numpy as np

from ...graphs.graph import Graph
from ...graphs.machine import Link, Links, Machine
from ...planner.schedule.schedule import DEFAULT_MODE
from ...planner.simulator.clock import Queue, link_of
from ...runtime.run.stopwatch import Copied, Times, Way

_LINKS = (Queue.D2H, Queue.H2D, Queue.DISK_READ, Queue.DISK_WRITE)
"""Queues in the order of `Links`."""


def remeasured(graph: Graph, machine: Machine | None, times: Times) -> Graph:
    """Return the graph with measured times, and with the measured machine.

    Operations, execution variants and links that did not run keep their times, scaled by the same factor as
    all that ran on the same processor.
    """
    factors = _processors(graph, times)
    comm = graph.operations.comm  # a slow device slows no network
    seconds = [
        times.seconds.get((operation, DEFAULT_MODE), before * (1.0 if operation in comm else factors[False]))
        for operation, before in enumerate(graph.operations.time.tolist())
    ]
    modes = {
        operation: tuple(
            replace(mode, time=times.seconds.get((operation, index), mode.time * factors[mode.on_host]))
            for index, mode in enumerate(of, 1)
        )
        for operation, of in graph.operations.modes.items()
    }
    operations = replace(graph.operations, time=np.array(seconds), modes=modes)
    if machine is not None:
        links = [_as_copied(link_of(machine.hierarchy, queue), times.copied.get(queue)) for queue in _LINKS]
        # The network between ranks is timed with its collectives' operations, not as a link.
        machine = replace(machine, links=Links(*links, peers=machine.links.peers))
    return replace(graph, operations=operations, machine=machine)


def unevenness(graph: Graph, machine: Machine | None, times: Times) -> float:
    """Return how far times have drifted relative to each other, as a share.

    0: all by one factor, which leaves the fastest schedule the fastest. It is the mean over computations,
    weighted by time, or the largest of the links if that is more.
    """
    ran = [(graph.seconds(*way), seconds) for way, seconds in times.seconds.items()]
    factor = _ratio(ran)
    apart = fsum(abs(now - factor * before) for before, now in ran) / fsum(now for _before, now in ran)
    if machine is None:
        return apart
    links = ((link_of(machine.hierarchy, queue), copied) for queue, copied in times.copied.items())
    return max([apart, *(abs(slower(link, copied) / factor - 1) for link, copied in links if link)])


SLOWED = ("operations", "updates on the CPU", *(queue.name.lower() for queue in _LINKS))
"""Names of the factors that `slowdowns` returns."""


def slowdowns(graph: Graph, machine: Machine | None, times: Times | None) -> list[float]:
    """Return the seconds measured per second planned, in the order of `SLOWED`; 1 if it is not known."""
    if times is None:
        return [1.0] * len(SLOWED)
    found = _processors(graph, times)
    for queue in _LINKS:
        link, copied = machine and link_of(machine.hierarchy, queue), times.copied.get(queue)
        found.append(1.0 if link is None or copied is None else slower(link, copied))
    return found


def slowest(times: Sequence[Times]) -> Times:
    """Return the times of ranks that wait for each other: each operation and link is the slowest rank's."""
    seconds, copied = dict[Way, float](), dict[Queue, Copied]()
    for each in times:
        seconds |= {way: max(taken, seconds.get(way, 0.0)) for way, taken in each.seconds.items()}
        for queue, found in each.copied.items():
            copied[queue] = max(found, copied.get(queue, found), key=lambda one: one.seconds)
    return Times(seconds, copied)


def _processors(graph: Graph, times: Times) -> list[float]:
    """Return the seconds now per second before of what ran on the device, and on the CPU.

    Apart for device and host: a busy CPU slows no kernel.
    """
    ran = {way: (graph.seconds(*way), seconds) for way, seconds in times.seconds.items()}
    return [
        _ratio([both for way, both in ran.items() if graph.on_host(*way) == on_host])
        for on_host in (False, True)
    ]


def slower(link: Link, copied: Copied) -> float:
    """Return the seconds measured per second that the link was planned to take for the same copies."""
    return copied.seconds / link.seconds(float(copied.bytes), copied.copies)


def _as_copied(link: Link | None, copied: Copied | None) -> Link | None:
    """Return the link that takes the measured seconds.

    It keeps its latency if the bytes take at least half of the time. Otherwise such small copies do not show
    the rate, and all its times change by one factor. So do those of a link that was measured by sizes.
    """
    if link is None or copied is None:
        return link
    left = copied.seconds - link.seconds(0.0, copied.copies)
    if 2 * left >= copied.seconds and not link.measured:
        return replace(link, rate=copied.bytes / left)
    return link.slowed(slower(link, copied))


def _ratio(pairs: list[tuple[float, float]]) -> float:
    """Return the seconds now per second before."""
    before = fsum(one for one, _now in pairs)
    return fsum(now for _before, now in pairs) / before if before > 0 else 1.0
