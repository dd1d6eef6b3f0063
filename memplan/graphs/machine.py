"""The machine a schedule is made for: memories with capacities, links and processors with rates.

    device ◀──h2d──▶ host ◀──disk_read, disk_write──▶ disk ◀──read, write──▶ … deeper tiers

The memories form a row; a link joins each to its neighbours alone. Code that moves and counts tensors
knows a memory by its place in the row, an int, and asks the `Hierarchy` for all else. `Memory` names the
first three places.

In sharded training the tensors that are spread over the ranks have a row of their own, of two places:

    device ◀──gather, scatter──▶ peers

A copy on the peers is spread over all ranks, so each device holds one share of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Bytes = TypeVar("Bytes", float, NDArray[np.float64])


MOST_MEMORIES = 8
"""The longest row: compiled code keeps the memories of a tensor as the bits of a byte."""


class Memory(IntEnum):
    """The first three places in the row of memories. DISK is the memory below the host, whatever its name.

    PEERS is the same place as HOST: it is the memory below the device of a tensor that is spread.
    """

    DEVICE = 0
    HOST = 1
    PEERS = 1
    DISK = 2


@dataclass(frozen=True)
class Link:
    """A link from one memory to the next. Nothing else knows how long a copy takes.

    rate: bytes/s, of large copies. latency: seconds that each copy takes in addition to its bytes.
    pageable: the rate from and to host memory that is not pinned; None if unknown.
    measured: pairs of bytes and the seconds that one copy of so many takes, growing; copies between two of
    these sizes are on the line between them, larger ones go on with the rate. Empty: all go by the rate.
    """

    rate: float
    latency: float = 0.0
    pageable: float | None = None
    measured: tuple[tuple[int, float], ...] = ()

    def seconds(self, size: Bytes, copies: int = 1) -> Bytes:
        """Return the seconds of so many bytes in so many copies of one size."""
        if not self.measured:
            return copies * self.latency + size / self.rate
        sizes, seconds = self._line
        one = size / copies
        # np.interp stays constant beyond the last size.
        more = np.maximum(one - sizes[-1], 0.0) / self.rate
        return cast(Bytes, copies * (np.interp(one, sizes, seconds) + more))

    def rate_of(self, sizes: Sequence[int]) -> float:
        """Return the bytes/s at which tensors of these sizes are copied one by one."""
        total = float(sum(sizes))
        # Without latency the rate does not depend on sizes.
        if not total or not (self.latency or self.measured):
            return self.rate
        return total / self.total_seconds(sizes)

    def total_seconds(self, sizes: Sequence[int]) -> float:
        """Return the seconds of tensors of these sizes, copied one by one."""
        if not self.measured:
            return self.seconds(float(sum(sizes)), len(sizes))
        return float(self.seconds(np.array(sizes, np.float64)).sum())

    @cached_property
    def best_rate(self) -> float:
        """Return the bytes/s that no copies exceed, whatever their sizes: the rate for lower bounds."""
        # Bytes over seconds is monotone on each line, so it is largest at an end of one, or without end.
        # Rounded up: the bound must not be below the exact quotient.
        reached = (float(np.nextafter(size / seconds, np.inf)) for size, seconds in self.measured)
        return max([self.rate, *reached])

    def least_seconds(self, size: int) -> float:
        """Return seconds that so many bytes take at least, in however many copies."""
        # Without measured sizes one copy takes least: each further one adds its latency.
        return size / self.best_rate if self.measured else self.seconds(float(size))

    def seconds_added(self, size: int) -> float:
        """Return the fewest seconds that a copy of one tensor of so many bytes adds to those of the link."""
        return float(self.seconds(float(size)))

    def slowed(self, factor: float) -> Link:
        """Return the link on which every pinned copy takes so many times as long."""
        measured = tuple((size, factor * seconds) for size, seconds in self.measured)
        return replace(self, rate=self.rate / factor, latency=factor * self.latency, measured=measured)

    @cached_property
    def _line(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the sizes and seconds between which copy times are linear.

        A copy of no bytes takes the latency.
        """
        sizes, seconds = zip((0, self.latency), *self.measured, strict=True)
        return np.array(sizes, np.float64), np.array(seconds, np.float64)


@dataclass(frozen=True)
class Replicas(Link):
    """The network between replicas: sets of ranks that each hold all shares (HSDP).

    A share of a gradient is all-reduced over them. The rate is that of the bytes that a device receives.

    count: number of replicas.
    """

    count: int = 2

    def seconds(self, size: Bytes, copies: int = 1) -> Bytes:
        """Return the seconds of so many bytes, all-reduced in so many shares of one size.

        A device receives what a ring all-reduce sends: all but one replica's part, twice.
        """
        return super().seconds(cast(Bytes, 2 * (self.count - 1) / self.count * size), copies)


@dataclass(frozen=True)
class Peers(Link):
    """The network between the ranks: one queue for gathers and scatters.

    Its rate is that of the bytes that a device receives, and so are the sizes that were measured. As a link
    it is that of gathers; `scatters` is that of scatters.

    ranks: number of devices that weights are spread over. replicas: None if no others train with them.
    """

    ranks: int = 1
    replicas: Replicas | None = None

    @cached_property
    def scatters(self) -> Peers:
        """The network for scatters, each of which includes its all-reduce over the replicas."""
        if self.replicas is None:
            return self
        latency = self.latency + self.replicas.latency
        return _Scatters(
            rate=self.rate,
            latency=latency,
            pageable=None,
            measured=self.measured,
            ranks=self.ranks,
            replicas=self.replicas,
            gathers=self,
        )

    def seconds(self, size: Bytes, copies: int = 1) -> Bytes:
        """Return the seconds of so many bytes, gathered or scattered in so many tensors of one size.

        A device receives all but its own share (ring all-gather and reduce-scatter).
        """
        # Each tensor's share is rounded up, as in share_of.
        return super().seconds(cast(Bytes, size - copies * np.ceil(size / copies / self.ranks)), copies)

    def total_seconds(self, sizes: Sequence[int]) -> float:
        # Not by the sum of sizes: the rounding is per tensor.
        return float(self.seconds(np.array(sizes, np.float64)).sum())

    def joins(self, size: Bytes) -> Bytes:
        """Tell whether a gather, or a scatter, of so many bytes joins the collective of the one before it.

        It does if its bytes take less than the latency that it saves (planner/simulator/collectives.py).
        """
        return cast(Bytes, self.seconds(size) < 2 * self.latency)

    def seconds_added(self, size: int) -> float:
        """Return the fewest seconds: without the latency if it joins."""
        return float(self.seconds(float(size)) - self.joins(float(size)) * self.latency)

    def share_of(self, size: int) -> int:
        """Return the bytes that a copy on the peers takes on each device."""
        return -(-size // self.ranks)


@dataclass(frozen=True)
class _Scatters(Peers):
    """A network with replicas, for scatters. latency: of both collectives. gathers: the network itself."""

    gathers: Peers = field(kw_only=True)

    def seconds(self, size: Bytes, copies: int = 1) -> Bytes:
        assert self.replicas is not None
        shares = cast(Bytes, copies * np.ceil(size / copies / self.ranks))
        # A scatter over the ranks, then an all-reduce of the share over the replicas.
        return self.gathers.seconds(size, copies) + self.replicas.seconds(shares, copies)

    def least_seconds(self, size: int) -> float:
        # Without the all-reduce: fewer seconds are still a lower bound.
        return self.gathers.least_seconds(size)


@dataclass(frozen=True, init=False)
class Links:
    """The links of a machine, None if it has no such link.

    A bare number is a rate in bytes/s, without latency. peers: the network between the ranks.
    """

    d2h: Link | None
    h2d: Link | None
    disk_read: Link | None
    disk_write: Link | None
    peers: Peers | None

    def __init__(
        self,
        d2h: Link | float | None = None,
        h2d: Link | float | None = None,
        disk_read: Link | float | None = None,
        disk_write: Link | float | None = None,
        *,
        peers: Peers | None = None,
    ) -> None:
        given = {"d2h": d2h, "h2d": h2d, "disk_read": disk_read, "disk_write": disk_write}
        for name, link in given.items():
            object.__setattr__(self, name, Link(float(link)) if isinstance(link, int | float) else link)
        object.__setattr__(self, "peers", peers)

    @property
    def reach_host(self) -> bool:
        """Tell whether tensors can go to the host and come back."""
        return self.d2h is not None and self.h2d is not None


@dataclass(frozen=True)
class Tier:
    """One memory of the row, and the links that join it to the memory above it.

    capacity: bytes; None if unknown, and then unlimited. write: the link from the memory above. read: the
    link to it. None if the machine has no such link.
    """

    name: str
    capacity: int | None = None
    write: Link | None = None
    read: Link | None = None


@dataclass(frozen=True)
class JointRate:
    """Links that cross one resource, and the bytes/s that it carries of all of them together.

    A copy holds its link for its seconds, and the resource for a part of them: the link's rate over this one.

    links: by the names of machine files. slots: devices whose copies the resource carries at once (a switch,
    a root complex, host memory).
    """

    links: tuple[str, ...]
    rate: float
    slots: int = 1

    def part(self, rate: float) -> float:
        """Return the part of a copy's seconds for which a link of this rate holds the resource."""
        return min(1.0, rate / self.rate)


@dataclass(frozen=True)
class Hierarchy:
    """All memories of a machine in a row, the device first.

    peers: the network to the other ranks, None if there is none. shared, joint_rates: see `Machine`.
    """

    tiers: tuple[Tier, ...]
    peers: Peers | None = None
    shared: tuple[tuple[str, ...], ...] = ()
    joint_rates: tuple[JointRate, ...] = ()

    def __len__(self) -> int:
        return len(self.tiers)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tier.name for tier in self.tiers)

    def with_length(self, memories: int) -> Hierarchy:
        """Return the row with at least so many memories; those that the machine lacks hold nothing."""
        missing = range(len(self.tiers), memories)
        added = (Tier(f"memory {place}", capacity=0) for place in missing)
        return replace(self, tiers=(*self.tiers, *added))


@dataclass(frozen=True)
class Updates:
    """Bytes of float32 weights that AdamW updates per second on each side; None if unknown.

    device, host: one operation after the other. device_fused, host_fused: by a fused kernel.
    """

    device: float | None = None
    host: float | None = None
    device_fused: float | None = None
    host_fused: float | None = None


@dataclass(frozen=True)
class Machine:
    """A machine's capacities in bytes and its links; an unknown capacity is None, which means unlimited.

    updates: no rule of schedules knows them; from them come the times of update operations that nobody has
    measured. pinned: bytes of host memory that can be pinned, of those that its capacity has. unpinned:
    nothing is pinned, and the links have their pageable rates; see `without_pinned`. disk_name: what the
    memory below the host is called. deeper: the memories below that, in a row. shared: groups of links, by
    the names of machine files, that take turns, as they share one resource; `cpu` stands for work on the
    CPU. joint_rates: resources that carry several links at once, up to a rate.
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
    shared: tuple[tuple[str, ...], ...] = ()
    joint_rates: tuple[JointRate, ...] = ()

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """Return all memories in a row."""
        links = self.links
        return Hierarchy(
            (
                Tier("device", self.device_capacity),
                Tier("host", self.host_capacity, links.d2h, links.h2d),
                Tier(self.disk_name, self.disk_capacity, links.disk_write, links.disk_read),
                *self.deeper,
            ),
            links.peers,
            self.shared,
            self.joint_rates,
        )

    @property
    def can_transfer(self) -> bool:
        """Tell whether tensors can leave the device and come back: to the host, or to the peers."""
        return self.links.reach_host or self.links.peers is not None

    def without_pinned(self) -> Machine | None:
        """Return the same machine without pinned memory, with slower copies.

        None if their rate is unknown.
        """
        links, d2h, h2d = self.links, self.links.d2h, self.links.h2d
        if d2h is None or h2d is None or d2h.pageable is None or h2d.pageable is None:
            return None
        # Measured seconds are of pinned copies, and do not hold here.
        d2h, h2d = (replace(link, rate=link.pageable or link.rate, measured=()) for link in (d2h, h2d))
        return replace(self, links=replace(links, d2h=d2h, h2d=h2d), pinned=None, unpinned=True)

    @property
    def crossing_capacity(self) -> int | None:
        """Return the bytes of copies on the host that a schedule can have cross the links to and from the
        device."""
        return min((size for size in (self.host_capacity, self.pinned) if size is not None), default=None)


def with_capacities(machine: Machine, bytes_of: Mapping[Memory, int]) -> Machine:
    """Return the machine with at most so many bytes in these memories, the host's and the disk's."""
    names = {Memory.HOST: "host_capacity", Memory.DISK: "disk_capacity"}
    known = ((names[memory], size, getattr(machine, names[memory])) for memory, size in bytes_of.items())
    return replace(machine, **{name: size if now is None else min(size, now) for name, size, now in known})
