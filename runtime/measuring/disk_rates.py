"""How fast a disk is read and written in large blocks, past the page cache.

The file has no name or loses it at once: it is gone when it is closed, however the program ends. Blocks are
written and read directly (O_DIRECT) where the file system can; elsewhere each block is flushed when it is
written, and dropped from the cache before it is read.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from ...graphs.errors import InputError
from .rates import Rate, rate_of

BLOCK_BYTES = 2**23
MOST_BLOCKS = 64
FEWEST_BLOCKS = 4
MOST_SECONDS = 3.0
"""For each way, above the fewest blocks."""
IN_MEMORY = ("tmpfs", "ramfs")


class DiskRates(NamedTuple):
    """free: bytes. direct: False where the page cache could only be flushed."""

    read: Rate
    write: Rate
    free: int
    direct: bool


def disk_rates(folder: Path, block_bytes: int = BLOCK_BYTES, most_blocks: int = MOST_BLOCKS) -> DiskRates:
    """Writes at most `most_blocks` of a file and reads them again. Raises InputError, one line."""
    try:
        free = _checked(folder, block_bytes)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file, mmap.mmap(-1, block_bytes) as block:
            block.write(os.urandom(block_bytes))
            return _measured(file.fileno(), block, min(most_blocks, free // block_bytes), free)
    except OSError as error:
        raise InputError(f"{folder}: its disk cannot be measured: {error.strerror}") from None


def _checked(folder: Path, block_bytes: int) -> int:
    """The free bytes of a folder on a disk."""
    if not folder.is_dir():
        raise InputError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    kind = file_system(folder)
    if kind in IN_MEMORY:
        raise InputError(f"{folder}: lies in memory ({kind}), not on a disk: name another folder")
    free = shutil.disk_usage(folder).free
    if free < FEWEST_BLOCKS * block_bytes:
        raise InputError(f"{folder}: too little room to measure the disk: {free:,} B are free")
    return free


def file_system(folder: Path) -> str | None:
    """Its kind, like 'ext4', where the system tells."""
    device = os.stat(folder).st_dev
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    fields = next((row for row in map(str.split, mounts) if row[2] == number), None)
    return None if fields is None else fields[fields.index("-") + 1]


def _measured(file: int, block: mmap.mmap, blocks: int, free: int) -> DiskRates:
    direct = _go_direct(file, block)

    def write(place: int) -> None:
        os.pwritev(file, [block], place * len(block))
        if not direct:
            os.fdatasync(file)

    def read(place: int) -> None:
        os.preadv(file, [block], place * len(block))

    written = _timed(write, blocks)
    if not direct:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    taken = _timed(read, len(written))
    size = len(block)
    return DiskRates(rate_of("disk read", size, taken), rate_of("disk write", size, written), free, direct)


def _go_direct(file: int, block: mmap.mmap) -> bool:
    """Whether the file now takes whole blocks past the cache; one was written."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | getattr(os, "O_DIRECT", 0))
        os.pwritev(file, [block], 0)
    except OSError:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
        return False
    return hasattr(os, "O_DIRECT")


def _timed(work: Callable[[int], None], blocks: int) -> list[float]:
    """Seconds, block by block."""
    taken: list[float] = []
    while len(taken) < blocks and (len(taken) < FEWEST_BLOCKS or sum(taken) < MOST_SECONDS):
        start = perf_counter()
        work(len(taken))
        taken.append(perf_counter() - start)
    return taken
