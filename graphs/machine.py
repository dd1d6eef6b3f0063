"""The machine a schedule is made for: memories with capacities, links and processors with rates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Memory(IntEnum):
    """Where a copy of a tensor can lie."""

    DEVICE = 0
    HOST = 1
    DISK = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Links:
    """Rates in bytes/s; None where the machine has no such link."""

    d2h: float | None = None
    h2d: float | None = None
    disk_read: float | None = None
    disk_write: float | None = None


@dataclass(frozen=True)
class Updates:
    """How many bytes of float32 weights AdamW updates per second; None where unknown."""

    device: float | None = None
    host: float | None = None


@dataclass(frozen=True)
class Machine:
    """Capacities in bytes; None where unknown, and then unlimited.

    updates: no rule of schedules knows them; from them come the times of update operations that nobody has
    measured.
    """

    device_capacity: int | None = None
    host_capacity: int | None = None
    disk_capacity: int | None = None
    links: Links = Links()
    updates: Updates = Updates()

    def capacity(self, memory: Memory) -> int | None:
        return (self.device_capacity, self.host_capacity, self.disk_capacity)[memory]
