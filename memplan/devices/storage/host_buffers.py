"""Host memory as blocks, counted.

Host memory is taken outside PyTorch's allocator, so that if device and host share the RAM the allocator's
bytes are the device's alone. What crosses the link to the device is in an arena (arena.py), at the offset
that the plan says; what is not in the plan has separate pages.
"""

from __future__ import annotations

from threading import RLock

import numpy as np
import torch
from torch import Tensor

from ...graphs.machine import Memory
from ...planner.addresses.pinned import PAGE
from ..device.host_capacity import available_bytes
from .arena import Arena
from .shortage import ShortageError

_ALIGNMENT = 64
"""Bytes, that of PyTorch's own CPU memory: some kernels round otherwise elsewhere."""
_LARGE = 2**20
"""Bytes. Large blocks begin at a page, as the disk takes them (disk.py)."""


class Count:
    """Bytes held now, and the most so far.

    The garbage collector may give back at any moment, in the midst of `take` too: hence the kind of lock.
    """

    def __init__(self) -> None:
        self.bytes = self.peak = 0
        self._lock = RLock()

    def take(self, size: int) -> None:
        with self._lock:
            self.bytes += size
            self.peak = max(self.peak, self.bytes)

    def give_back(self, size: int) -> None:
        with self._lock:
            self.bytes -= size


class Host:
    """Host memory of a step.

    needed: bytes.
    left: bytes of `needed` that are about to be freed; less those that something else is about to take.
    arena: for blocks with an address.

    A block may be dropped while copies of it are queued: pinned memory stays in the arena, where the schedule
    orders its users, and a copy from or to other memory has ended when it returns.
    """

    def __init__(self, needed: int = 0, left: int = 0, arena: Arena | None = None) -> None:
        """Check the machine's memory. Raises ShortageError if it has not that much."""
        self.count = Count()
        self.needed, self.arena = needed, arena
        free = available_bytes()
        if free is not None and needed > free + left:
            there = max(0, free + min(left, 0))
            line = f"the schedule needs {needed:,} bytes of host memory, {there:,} are available here"
            raise ShortageError.of(Memory.HOST, line, max(0, free + left))

    def block(self, size: int, offset: int | None = None, room: int = 0) -> HostBuffer:
        """Create a block.

        size: bytes.
        offset: its address in the arena, where it has `room` bytes.
        """
        return HostBuffer(self, size, self.fitting(size, offset, room))

    def fitting(self, size: int, offset: int | None, room: int) -> int | None:
        """Return the offset, or None if the arena does not reach so far."""
        arena = self.arena
        fits = arena is not None and offset is not None and size <= room and offset + room <= arena.size
        return offset if fits else None

    def memory(self, size: int, offset: int | None) -> tuple[Tensor, Arena | None]:
        """Allocate memory and return it with the arena that it is in, if any. Raises ShortageError."""
        if self.arena is not None and offset is not None:
            return self.arena.bytes(offset, size), self.arena
        alignment = PAGE if size >= _LARGE else _ALIGNMENT
        try:
            taken = np.empty(size + alignment, np.uint8)
        except MemoryError as error:
            line = f"the host has no memory for another {size:,} bytes of the schedule"
            raise ShortageError.of(Memory.HOST, line) from error
        # NumPy promises 16 bytes: more is taken, and used from the next multiple on.
        start = -taken.ctypes.data % alignment
        return torch.from_numpy(taken[start : start + size]), None


class HostBuffer:
    """A copy in host memory, there from `open` (or `hold`) until nobody has the block any more.

    offset: in the host's arena, which others may use when nobody has the block any more; None: separate
        memory.
    """

    __slots__ = ("_arena", "_counted", "_host", "bytes", "offset", "size")

    def __init__(self, host: Host, size: int, offset: int | None = None) -> None:
        self.size, self._host, self._counted = size, host, 0
        self.offset = offset
        self._arena: Arena | None = None  # held, so that the memory stays pinned
        self.bytes: Tensor = _NONE

    def open(self) -> HostBuffer:
        """Take the memory, unless it is there."""
        if not self._counted:
            self._host.count.take(self.size)
            self._counted = self.size
            self.bytes, self._arena = self._host.memory(self.size, self.offset)
        return self

    @property
    def is_open(self) -> bool:
        return self._counted > 0 or not self.size

    def hold(self, memory: Tensor) -> None:
        """Take what was made elsewhere: the bytes of an operation's result on the CPU. One with an address,
        which is to go to the device, is copied there."""
        if self.offset is not None and memory.nbytes <= self.size:
            self.open().bytes[: memory.nbytes].copy_(memory)
            return
        self._host.count.take(memory.nbytes)
        self.bytes, self._counted = memory, memory.nbytes

    @property
    def is_pinned(self) -> bool:
        return self._arena is not None

    def taken(self) -> Tensor:
        """Return the bytes, for users that keep them longer than the block."""
        return self.bytes if self.offset is None else self.bytes.clone()

    def lie(self, offset: int | None, room: int = 0) -> None:
        """Move the block's content to an offset of its host's arena; None: to memory outside the arena.

        No copy of it may be queued.
        """
        self.offset = self._host.fitting(self.size, offset, room)
        if self._counted:
            before = self.bytes
            self.bytes, self._arena = self._host.memory(self._counted, self.offset)
            self.bytes.copy_(before)

    def move(self, host: Host) -> None:
        """Count the block on another host from now on."""
        host.count.take(self._counted)
        self._host.count.give_back(self._counted)
        self._host = host

    def __del__(self) -> None:
        self.bytes = _NONE
        self._host.count.give_back(self._counted)


_NONE = torch.empty(0, dtype=torch.uint8, device="cpu")
