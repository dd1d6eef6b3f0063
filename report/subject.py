"""What is reported on, and the words for its queues."""

from __future__ import annotations

from dataclasses import dataclass

from ..graphs.graph import Graph
from ..graphs.machine import Machine, Memory
from ..planner.addresses.lifetimes import Lifetimes, lifetimes
from ..planner.report import Report
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.clock import Queue
from ..planner.simulator.pinned import PINNED

QUEUES = ("compute", "CPU", "device to host", "host to device", "disk write", "disk read")
"""By Queue."""

CAUSES = (
    "a computation on the device",
    "a computation on the CPU",
    "a copy to the host",
    "a copy from the host",
    "a write to the disk",
    "a read from the disk",
    "the training thread",
    "the iteration before the last",
)
"""Why a queue stood still: by Queue, then LAUNCH and FENCE."""

MEMORIES = {"device": Memory.DEVICE, "host": Memory.HOST, "pinned": PINNED, "disk": Memory.DISK}

assert len(QUEUES) == len(Queue)


@dataclass(frozen=True)
class Subject:
    """budget: device bytes. report: the schedule's figures, which the judge has found."""

    graph: Graph
    schedule: Schedule
    report: Report
    budget: int | None = None
    machine: Machine | None = None

    def copies(self) -> dict[Memory, Lifetimes]:
        """By Memory: the device's, and where anything lies on the host, those of all."""
        return {
            memory: lifetimes(self.graph, self.schedule, memory, budget=self.budget, machine=self.machine)
            for memory in Memory
            if memory == Memory.DEVICE or self.report.figures.host_peak
        }
