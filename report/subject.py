"""What is reported on, and the words for its queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ..graphs.graph import Graph
from ..graphs.machine import Machine, Memory
from ..planner.addresses.lifetimes import Lifetimes, lifetimes
from ..planner.report import Report
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.pinned import PINNED
from ..planner.simulator.timeline import LAUNCH, NOTHING


def queue_words(memories: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each queue, by its number. memories: their names in a row."""
    copies = ((f"{name} write", f"{name} read") for name in memories[Memory.DISK :])
    return ("compute", "CPU", "device to host", "host to device", *chain.from_iterable(copies))


def cause_words(memories: Sequence[str]) -> tuple[str, ...]:
    """Return why a queue stood still: by the queue waited for, then LAUNCH and FENCE. See `cause_index`."""
    copies = ((f"a write to the {name}", f"a read from the {name}") for name in memories[Memory.DISK :])
    return (
        "a computation on the device",
        "a computation on the CPU",
        "a copy to the host",
        "a copy from the host",
        *chain.from_iterable(copies),
        "the training thread",
        "the iteration before the last",
    )


def cause_index(cause: int, memories: Sequence[str]) -> int:
    """Return the place of a timeline's cause among the `cause_words`; NOTHING stays."""
    return cause if cause >= NOTHING else len(queue_words(memories)) + LAUNCH - cause


@dataclass(frozen=True)
class Subject:
    """budget: device bytes. report: the schedule's figures, which the judge has found."""

    graph: Graph
    schedule: Schedule
    report: Report
    budget: int | None = None
    machine: Machine | None = None

    @property
    def memories(self) -> tuple[str, ...]:
        """The names of the machine's memories in a row."""
        return (self.machine or self.graph.machine or Machine()).hierarchy.names

    @property
    def ledgers(self) -> dict[str, int]:
        """The memories by name, what is pinned of the host behind it."""
        places = {name: place for place, name in enumerate(self.memories)}
        device, host, *deeper = places.items()
        return dict((device, host, ("pinned", PINNED), *deeper))

    def copies(self) -> dict[int, Lifetimes]:
        """By memory: the device's, and where anything lies on the host, those of all."""
        return {
            memory: lifetimes(self.graph, self.schedule, memory, budget=self.budget, machine=self.machine)
            for memory in range(len(self.memories))
            if memory == Memory.DEVICE or self.report.figures.host_peak
        }
