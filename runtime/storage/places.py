"""Memory beside the device: blocks of the host, files on the disk. Each counts what it holds.

Host memory is pinned where the device wants it so; else it is taken beside PyTorch's allocator, so that where
device and host share the RAM the allocator's bytes are the device's alone.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import shutil
from collections import deque
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...graphs.errors import InputError, MemplanError
from ...graphs.folders.scratch import Scratch
from ..device.device import Device, Event

_ALIGNMENT = 64
"""Bytes, that of PyTorch's own CPU memory: some kernels round otherwise elsewhere."""


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
    """needed: bytes. device: for copies from and to it. left: bytes of `needed` that are about to be free.

    A block that goes while a copy of it is still queued is held until that has ended; it is waited for where
    the room is needed, since the thread that gives copies to a device runs ahead of them.
    """

    def __init__(self, needed: int = 0, device: Device | None = None, left: int = 0) -> None:
        """Raises InputError where the machine has not that much."""
        self.count = Count()
        self._device, self.needed = device, needed
        self._going, self._taking = deque[tuple[int, Event]](), RLock()
        free = available_bytes()
        if free is not None and needed > free + left:
            raise InputError(
                f"the schedule needs {needed:,} bytes of host memory, {free:,} are available here"
            )

    def block(self, size: int) -> Block:
        return Block(self, size)

    def take(self, size: int) -> None:
        with self._taking:
            while self._going and self.count.bytes + size > self.needed:
                gone, event = self._going.popleft()
                event.synchronize()
                self.count.give_back(gone)
            self.count.take(size)

    def give_back(self, size: int, used: Event | None) -> None:
        if used is None:
            self.count.give_back(size)
        else:
            self._going.append((size, used))

    def memory(self, size: int) -> Tensor:
        if self._device is not None and (pinned := self._device.host_memory(size)) is not None:
            return pinned
        taken = np.empty(size + _ALIGNMENT, np.uint8)
        start = -taken.ctypes.data % _ALIGNMENT
        return torch.from_numpy(taken[start : start + size])


class Block:
    """A copy in host memory, there from `open` (or `hold`) until nobody has the block any more.

    used: passed once the copies from and to the device have ended.
    """

    __slots__ = ("_counted", "_host", "bytes", "size", "used")

    def __init__(self, host: Host, size: int) -> None:
        self.size, self._host, self._counted = size, host, 0
        self.bytes: Tensor = _NONE
        self.used: Event | None = None

    def open(self) -> Block:
        """Take the memory, unless it is there."""
        if not self._counted:
            self._host.take(self.size)
            self._counted = self.size
            self.bytes = self._host.memory(self.size)
        return self

    def hold(self, memory: Tensor) -> None:
        """Take what was made elsewhere: the bytes of an operation's result on the CPU."""
        self._host.take(memory.nbytes)
        self.bytes, self._counted = memory, memory.nbytes

    def move(self, host: Host) -> None:
        """Counted there from now on."""
        host.take(self._counted)
        self._host.give_back(self._counted, None)
        self._host = host

    def __del__(self) -> None:
        self.bytes = _NONE
        self._host.give_back(self._counted, self.used)


class Disk:
    """A folder of its own within `folder` (by default the system's for temporary files), gone at the end."""

    def __init__(self, needed: int, folder: Path | None = None) -> None:
        """Raises InputError where it can't be made or has no room for `needed` bytes."""
        self.count = Count()
        self._number = itertools.count()
        where = folder or "the folder for temporary files"
        try:
            self._folder = Scratch("disk", folder)
            free = shutil.disk_usage(self._folder.name).free
        except OSError as error:
            raise InputError(f"{where}: can't offload to it: {error.strerror or error}") from error
        if free < needed:
            raise InputError(f"{where}: the schedule needs {needed:,} bytes of disk, {free:,} are free")

    def file(self, size: int) -> File:
        return File(self, size)

    def new_path(self) -> Path:
        return Path(self._folder.name) / f"{next(self._number)}.bytes"


class File:
    """A copy on the disk: raw bytes, there from `open` or `write` until nobody has it any more.

    size: room. What is written may be less: a host's result has its own bytes, not the device's whole blocks.
    """

    __slots__ = ("_counted", "_disk", "_path", "_written", "size")

    def __init__(self, disk: Disk, size: int) -> None:
        self.size, self._disk, self._counted, self._written = size, disk, 0, 0
        self._path = disk.new_path()

    def open(self) -> File:
        """Take the room, unless it is taken."""
        if not self._counted:
            self._counted = self.size
            self._disk.count.take(self.size)
        return self

    def write(self, source: Tensor) -> None:
        """Raises MemplanError, one line, as `read` does."""
        self.open()
        self._written = source.nbytes
        try:
            with self._path.open("wb", buffering=0) as file:
                _all(file.write, source)
        except OSError as error:
            raise MemplanError(f"{self._path}: can't write: {error.strerror}") from error

    def read(self, target: Tensor) -> None:
        try:
            with self._path.open("rb", buffering=0) as file:
                _all(file.readinto, target[: self._written])
        except OSError as error:
            raise MemplanError(f"{self._path}: can't read: {error.strerror}") from error

    def mapped(self) -> Tensor:
        """The bytes, read as they are looked at; what is written there does not reach the file."""
        return torch.from_file(str(self._path), shared=False, size=self._written, dtype=torch.uint8)

    def __del__(self) -> None:
        self._disk.count.give_back(self._counted)
        self._path.unlink(missing_ok=True)


def _all(move: Any, tensor: Tensor) -> None:
    """Move all bytes: one call moves at most 2 GiB."""
    left = memoryview(tensor.numpy())  # pyright: ignore[reportArgumentType]
    while len(left):
        moved = move(left)
        if not moved:
            raise OSError(0, "the file is too short")
        left = left[moved:]


def available_bytes() -> int | None:
    """Of this machine's RAM; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0][1]) if found else None


_NONE = torch.empty(0, dtype=torch.uint8)
