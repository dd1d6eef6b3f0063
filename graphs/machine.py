"""The machine a schedule is made for: memories with capacities, links and processors with rates.

    device ◀──h2d──▶ host ◀──disk_read, disk_write──▶ disk ◀──read, write──▶ … deeper tiers

The memories stand in a row; a link joins each to its neighbours alone. Code that moves and counts tensors
knows a memory by its place in the row, an int, and asks the `Hierarchy` for all else. `Memory` names the
first three places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Bytes = TypeVar("Bytes", float, NDArray[np.float64])


MOST_MEMORIES = 8
"""The longest row: compiled code keeps the memories of a tensor as the bits of a byte."""


class Memory(IntEnum):
    """The first three places in the row of memories. DISK is the memory below the host, whatever its name."""

    DEVICE = 0
    HOST = 1
    DISK = 2


@dataclass(frozen=True)
class Link:
    """rate: bytes/s. latency: seconds that each copy takes beside its bytes. pageable: the rate from and to
    host memory that is not pinned; None where unknown."""

    rate: float
    latency: float = 0.0
    pageable: float | None = None

    def seconds(self, size: Bytes, copies: int = 1) -> Bytes:
        """Of so many bytes in so many copies. All that plans or judges copies asks here."""
        return copies * self.latency + size / self.rate

    def rate_of(self, sizes: Sequence[int]) -> float:
        """Bytes/s of tensors of these bytes that are copied one by one."""
        total = float(sum(sizes))
        return total / self.seconds(total, len(sizes)) if self.latency and total else self.rate


@dataclass(frozen=True, init=False)
class Links:
    """None where the machine has no such link. A bare number is a rate in bytes/s, without latency."""

    d2h: Link | None
    h2d: Link | None
    disk_read: Link | None
    disk_write: Link | None

    def __init__(
        self,
        d2h: Link | float | None = None,
        h2d: Link | float | None = None,
        disk_read: Link | float | None = None,
        disk_write: Link | float | None = None,
    ) -> None:
        given = {"d2h": d2h, "h2d": h2d, "disk_read": disk_read, "disk_write": disk_write}
        for name, link in given.items():
            object.__setattr__(self, name, Link(float(link)) if isinstance(link, int | float) else link)


@dataclass(frozen=True)
class Tier:
    """One memory of the row, and the links that join it to the memory above it.

    capacity: bytes; None where unknown, and then unlimited. write: the link from the memory above. read: the
    link to it. None where the machine has no such link.
    """

    name: str
    capacity: int | None = None
    write: Link | None = None
    read: Link | None = None


@dataclass(frozen=True)
class Hierarchy:
    """All memories of a machine in a row, the device first."""

    tiers: tuple[Tier, ...]

    def __len__(self) -> int:
        return len(self.tiers)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tier.name for tier in self.tiers)

    def with_length(self, memories: int) -> Hierarchy:
        """Return the row with at least so many memories; those that the machine lacks hold nothing."""
        missing = range(len(self.tiers), memories)
        return Hierarchy((*self.tiers, *(Tier(f"memory {place}", capacity=0) for place in missing)))


@dataclass(frozen=True)
class Updates:
    """How many bytes of float32 weights AdamW updates per second, one operation after the other, and by a
    fused kernel; None where unknown."""

    device: float | None = None
    host: float | None = None
    device_fused: float | None = None
    host_fused: float | None = None


@dataclass(frozen=True)
class Machine:
    """Capacities in bytes; None where unknown, and then unlimited.

    updates: no rule of schedules knows them; from them come the times of update operations that nobody has
    measured. pinned: bytes of host memory that can be pinned, of those that its capacity has. unpinned:
    nothing is pinned, and the links have their pageable rates; see `without_pinned`. disk_name: what the
    memory below the host is called. deeper: the memories below that, in a row.
    """

    device_capacity: int | None = None
    host_capacity: int | None = None
    disk_capacity: int | None = None
    links: Links = Links()
    updates: Updates = Updates()
    pinned: int | None = None
    unpinned: bool = False
    disk_name: str = "disk"
    deeper: tuple[Tier, ...] = ()

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """All memories in a row."""
        links = self.links
        return Hierarchy(
            (
                Tier("device", self.device_capacity),
                Tier("host", self.host_capacity, links.d2h, links.h2d),
                Tier(self.disk_name, self.disk_capacity, links.disk_write, links.disk_read),
                *self.deeper,
            )
        )

    def without_pinned(self) -> Machine | None:
        """The same where nothing is pinned, which copies take longer for; None where that is unknown."""
        links, d2h, h2d = self.links, self.links.d2h, self.links.h2d
        if d2h is None or h2d is None or d2h.pageable is None or h2d.pageable is None:
            return None
        d2h, h2d = replace(d2h, rate=d2h.pageable), replace(h2d, rate=h2d.pageable)
        return replace(self, links=replace(links, d2h=d2h, h2d=h2d), pinned=None, unpinned=True)

    @property
    def crossing_capacity(self) -> int | None:
        """Bytes of copies on the host that a schedule can have cross the links to and from the device."""
        return min((size for size in (self.host_capacity, self.pinned) if size is not None), default=None)
