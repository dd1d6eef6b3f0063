"""The disk: one file, in which each copy has an extent.

The file has no name, or loses it at once: nobody can remove it or cut it short, and it is gone with its
process, however that ends. Its room is reserved before the first iteration, so that a disk that others fill
stops none. Extents begin at whole pages.

A copy is split into parts that are moved concurrently, past the page cache (O_DIRECT) if the file system can;
there a part whose memory does not begin at a page, or the rest after the last whole page, is moved through a
buffer that does. What comes back is compared with checksums of what was written.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...graphs.errors import InputError, MemplanError
from ...graphs.machine import Memory
from ...planner.addresses.pinned import PAGE
from .checksum import checksum
from .extents import Extents
from .host_buffers import Count
from .shortage import ShortageError

Bytes = NDArray[np.uint8]

EXTENT = max(PAGE, mmap.ALLOCATIONGRANULARITY)
"""Bytes, of which extents have whole multiples."""
PIECE, LEAST_PIECE, AT_ONCE = 2**23, 2**20, 4
"""Bytes of a part, at most and at least; how many parts are moved at once in each direction."""

_FCNTL: Any = import_module("fcntl") if os.name == "posix" else None
_OS: Any = os
"""Whose calls take NumPy's arrays, though their stubs do not say so."""


class Disk:
    """The file on the disk and its extents.

    direct: reads and writes go past the page cache.
    where: the folder, for messages.
    """

    def __init__(self, needed: int, folder: Path | None = None) -> None:
        """Create the file and reserve its room.

        needed: bytes.
        folder: where the file is, by default the system's for temporary files.

        Raises InputError if it can't be made, ShortageError if it has no room for `needed` bytes.
        """
        self.count = Count()
        where = folder or "the folder for temporary files"
        if not hasattr(os, "preadv"):
            raise InputError(f"{where}: can't offload to it: this system has no preadv")
        self.where = str(folder or tempfile.gettempdir())
        self._extents, self._growing, self._reserved = Extents(), threading.Lock(), 0
        self._buffers = threading.local()
        # Threads of each direction's own, so that reads do not wait for writes.
        self._pools = [
            ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"memplan disk {way}") for way in ("read", "write")
        ]
        try:
            free = shutil.disk_usage(self.where).free
            if free < needed:
                line = f"{where}: the schedule needs {needed:,} bytes of disk, {free:,} are free"
                raise ShortageError.of(Memory.DISK, line, free)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self._reserve(needed)
            self.direct = self._go_direct()
        except OSError as error:
            raise InputError(f"{where}: can't offload to it: {error.strerror or error}") from error

    def file(self, size: int) -> File:
        return File(self, size)

    def take(self, size: int, counted: int) -> int:
        """Take an extent and return its offset. Raises ShortageError if there is no room."""
        offset = self._extents.take(size)
        try:
            self._reserve(offset + size)
        except OSError as error:
            self._extents.give_back(offset, size)
            line = f"{self.where}: can't offload to it: {error.strerror}"
            raise ShortageError.of(Memory.DISK, line) from error
        self.count.take(counted)
        return offset

    def give_back(self, offset: int, size: int, counted: int) -> None:
        self._extents.give_back(offset, size)
        self.count.give_back(counted)

    def _reserve(self, end: int) -> None:
        with self._growing:
            if end > self._reserved:
                end = _whole(end)
                _allocate(self._file.fileno(), self._reserved, end - self._reserved)
                self._reserved = end

    def write(self, data: Bytes, offset: int) -> list[int]:
        """Write the data and return the checksums of its parts. Raises OSError."""
        return self._in_pieces(1, self._written, data, offset)

    def read(self, data: Bytes, offset: int, sums: list[int]) -> None:
        """Read an extent. Raises OSError, and MemplanError if what comes back is not what was written."""
        pieces = _pieces(len(data))
        found = self._in_pieces(0, self._taken, data, offset)
        for (start, end), one, other in zip(pieces, found, sums, strict=True):
            if one != other and self._taken(data[start:end], offset + start) != other:  # not twice
                raise MemplanError(self._damaged())

    def mapped(self, size: int, offset: int, sums: list[int], keeper: object) -> Tensor:
        """Map an extent into memory, and check it against its checksums.

        keeper: the object that holds the extent.

        Raises OSError and MemplanError as `read` does.
        """
        there = _Mapping(self._file.fileno(), size, flags=mmap.MAP_PRIVATE, offset=offset)
        there.keeper = keeper
        made = torch.frombuffer(there, dtype=torch.uint8)
        data = made.numpy()
        if [checksum(data[start:end]) for start, end in _pieces(size)] != sums:
            raise MemplanError(self._damaged())
        return made

    def flush(self) -> None:
        """Wait until what was written is on the disk, and in no cache of the system that can be asked to
        drop it.
        """
        os.fsync(self._file.fileno())  # first: pages that are not on the disk yet can't be dropped
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _damaged(self) -> str:
        return (
            f"{self.where}: what was offloaded there comes back with other bytes: give another folder for "
            "the disk (--disk, TMPDIR) and go on from the last checkpoint"
        )

    def _in_pieces(self, way: int, move: Callable[[Bytes, int], int], data: Bytes, offset: int) -> list[int]:
        pieces = [(data[start:end], offset + start) for start, end in _pieces(len(data))]
        if len(pieces) < 2:  # in this thread: a pool would only add time
            return [move(*piece) for piece in pieces]
        given = [self._pools[way].submit(move, *piece) for piece in pieces]
        try:
            return [one.result() for one in given]
        except BaseException:
            for one in given:
                one.cancel()
            wait(given)  # none of them may still use the memory
            raise

    def _written(self, data: Bytes, offset: int) -> int:
        whole = self._straight(data)
        if whole:
            _all(partial(_OS.pwritev, self._file.fileno()), data[:whole], offset)
        for start in range(whole, len(data), PIECE):
            rest = data[start : start + PIECE]
            buffer = self._buffer()
            buffer[: len(rest)] = rest
            # O_DIRECT takes whole pages; those of the last one after the data are of this extent too.
            _all(partial(_OS.pwritev, self._file.fileno()), buffer[: _whole(len(rest), PAGE)], offset + start)
        return checksum(data)

    def _taken(self, data: Bytes, offset: int) -> int:
        whole = self._straight(data)
        if whole:
            _all(partial(_OS.preadv, self._file.fileno()), data[:whole], offset)
        for start in range(whole, len(data), PIECE):
            rest = data[start : start + PIECE]
            buffer = self._buffer()
            _all(partial(_OS.preadv, self._file.fileno()), buffer[: _whole(len(rest), PAGE)], offset + start)
            rest[:] = buffer[: len(rest)]
        return checksum(data)

    def _straight(self, data: Bytes) -> int:
        """Return how many of the bytes can go between file and memory directly, without a buffer."""
        if not self.direct:
            return len(data)
        return 0 if data.__array_interface__["data"][0] % PAGE else len(data) // PAGE * PAGE

    def _buffer(self) -> Bytes:
        """Return the calling thread's buffer."""
        if not hasattr(self._buffers, "own"):
            self._buffers.own = np.frombuffer(mmap.mmap(-1, PIECE), np.uint8)
        return self._buffers.own

    def _go_direct(self) -> bool:
        """Make the file take whole pages past the cache; tell whether it does.

        One page is written, beyond all extents.
        """
        if _FCNTL is None or not hasattr(os, "O_DIRECT"):
            return False
        file = self._file.fileno()
        flags = _FCNTL.fcntl(file, _FCNTL.F_GETFL)
        try:
            _FCNTL.fcntl(file, _FCNTL.F_SETFL, flags | os.O_DIRECT)
            # The flag alone says nothing about what writes are refused, so one is tried.
            _OS.pwritev(file, [self._buffer()[:EXTENT]], self._reserved)
        except OSError:
            _FCNTL.fcntl(file, _FCNTL.F_SETFL, flags)
            return False
        return True


class File:
    """A copy on the disk: raw bytes, there from `open` or `write` until nobody has it any more.

    size: room. What is written may be less: a host's result has its own bytes, not the device's whole blocks.
    """

    __slots__ = ("_disk", "_offset", "_sums", "_written", "size")

    def __init__(self, disk: Disk, size: int) -> None:
        self.size, self._disk, self._written = size, disk, 0
        self._offset: int | None = None
        self._sums: list[int] | None = None

    def open(self) -> File:
        """Take the room, unless it is taken."""
        self._place()
        return self

    def write(self, source: Tensor) -> None:
        """Write the bytes. Raises MemplanError, one line, as `read` does."""
        # No sums until all is written: `read` refuses what was written in part.
        offset, self._written, self._sums = self._place(), source.nbytes, None
        try:
            self._sums = self._disk.write(source.numpy(), offset)
        except OSError as error:
            # Whatever the disk's reason, a plan that writes less there may do.
            line = f"{self._disk.where}: can't write: {error.strerror}"
            raise ShortageError.of(Memory.DISK, line) from error

    def read(self, target: Tensor) -> None:
        sums, data = self._good(), target[: self._written].numpy()
        try:
            try:
                self._disk.read(data, self._place(), sums)
            except OSError:  # some come of a bus or a network that is back at once; nobody has the data yet
                self._disk.read(data, self._place(), sums)
        except OSError as error:
            raise MemplanError(f"{self._disk.where}: can't read: {error.strerror}") from error

    def mapped(self) -> Tensor:
        """Return the bytes, read from the file as they are accessed. Raises MemplanError, one line.

        What is written to them does not reach the file.
        """
        sums = self._good()
        if not self._written:
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        try:
            return self._disk.mapped(self._written, self._place(), sums, self)
        except OSError as error:
            raise MemplanError(f"{self._disk.where}: can't read: {error.strerror}") from error

    def _good(self) -> list[int]:
        if self._sums is None:
            raise MemplanError(f"{self._disk.where}: can't read: it was not written to the end")
        return self._sums

    def _place(self) -> int:
        if self._offset is None:
            self._offset = self._disk.take(self._room(), self.size) if self.size else 0
        return self._offset

    def _room(self) -> int:
        return _whole(self.size)

    def __del__(self) -> None:
        if self._offset is not None and self.size:
            self._disk.give_back(self._offset, self._room(), self.size)


class _Mapping(mmap.mmap):
    """Mapping of an extent.

    keeper: holds the extent as long as the mapping is in use.
    """

    keeper: object = None


def _whole(size: int, unit: int = EXTENT) -> int:
    return -(-size // unit) * unit


def _pieces(size: int) -> list[tuple[int, int]]:
    """Return begin and end of the parts: as many as are moved at once, unless they are too small, or too
    large.
    """
    step = min(PIECE, max(LEAST_PIECE, _whole(-(-size // AT_ONCE))))
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def _all(move: Callable[[list[Bytes], int], int], data: Bytes, offset: int) -> None:
    """Move all bytes: one call may move fewer."""
    while len(data):
        moved = move([data], offset)
        if not moved:
            raise OSError(0, "the file is too short")
        data, offset = data[moved:], offset + moved


def _allocate(file: int, start: int, size: int) -> None:
    """Reserve room on the disk, if the file system supports it. Raises OSError.

    It calls C's function, since Python's fills the file with zeros if the file system does not.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None) if os.name == "posix" else None
    if fallocate is not None and not fallocate(file, 0, ctypes.c_int64(start), ctypes.c_int64(size)):
        return
    number = ctypes.get_errno()
    if fallocate is not None and number not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number))
    os.ftruncate(file, start + size)  # this reserves nothing: a write may still find the disk full
