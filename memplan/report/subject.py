"""The schedule that a report is on, and the words for its queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ..graphs.graph import Graph
from ..graphs.machine import Machine, Memory
from ..planner.addresses.lifetimes import Lifetimes, lifetimes
from ..planner.report import Report
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.clock import Queue
from ..planner.simulator.pinned import PINNED
from ..planner.simulator.timeline import LAUNCH, NOTHING


def queue_words(memories: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each queue, by its number. memories: their names from the device down."""
    copies = ((f"{name} write", f"{name} read") for name in memories[Memory.DISK :])
    return ("compute", "CPU", "device to host", "host to device", *chain.from_iterable(copies), "network")


def cause_words(memories: Sequence[str]) -> tuple[str, ...]:
    """Return why a queue was idle: by the queue waited for, then LAUNCH and FENCE. See `cause_index`."""
    copies = ((f"a write to the {name}", f"a read from the {name}") for name in memories[Memory.DISK :])
    return (
        "a computation on the device",
        "a computation on the CPU",
        "a copy to the host",
        "a copy from the host",
        *chain.from_iterable(copies),
        "a collective",
        "the training thread",
        "the iteration before the last",
    )


def cause_index(cause: int, memories: Sequence[str]) -> int:
    """Return the index of a timeline's cause among the `cause_words`; NOTHING stays."""
    # LAUNCH and FENCE are below NOTHING, one after the other: their words follow those of the queues.
    return queue_index(cause, memories) if cause >= NOTHING else len(queue_words(memories)) + LAUNCH - cause


def queue_index(queue: int, memories: Sequence[str]) -> int:
    """Return the index of a timeline's queue among the `queue_words`: the network is the last."""
    return len(queue_words(memories)) - 1 if queue == Queue.COMM else queue


@dataclass(frozen=True)
class Subject:
    """A schedule to report on.

    budget: bytes of the device, None for no limit.
    report: the schedule's figures, as the simulator found them.
    arena: bytes in which the device's copies have their addresses, None without addresses. With them the
        budget is of live bytes, and the arena is what the device gives.
    """

    graph: Graph
    schedule: Schedule
    report: Report
    budget: int | None = None
    machine: Machine | None = None
    arena: int | None = None

    @property
    def memories(self) -> tuple[str, ...]:
        """Names of the machine's memories, from the device down."""
        return (self.machine or self.graph.machine or Machine()).hierarchy.names

    @property
    def ledgers(self) -> dict[str, int]:
        """Memories by name; the host's is followed by `pinned`, its page-locked part."""
        places = {name: place for place, name in enumerate(self.memories)}
        device, host, *deeper = places.items()
        return dict((device, host, ("pinned", PINNED), *deeper))

    def copies(self) -> dict[int, Lifetimes]:
        """Return the lifetimes by memory: the device's, and, if the host holds anything, all others."""
        return {
            memory: lifetimes(self.graph, self.schedule, memory, budget=self.budget, machine=self.machine)
            for memory in range(len(self.memories))
            if memory == Memory.DEVICE or self.report.figures.host_peak
        }
