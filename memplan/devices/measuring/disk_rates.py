"""Rates at which copies are written to a disk and read from it, each direction alone, and both at once.

They are copies as a plan makes them: in the runtime's own file, in parts, several at once, past the page
cache (devices/storage/disk.py). The file has no name: it is deleted when it is closed, however the program
ends. If the file system can't bypass the cache, each copy is flushed when it is written, and dropped before
it is read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import NamedTuple

from ...graphs.errors import InputError
from ..storage.disk import Disk, File
from ..storage.host_buffers import Host
from .rates import CopyRates, Rate, rate_of, repeated

COPY_BYTES = 2**26
SMALL = 2**12
"""Bytes of copies that take hardly more than their latency."""
MOST_COPIES = 8
FEWEST_COPIES = 4
MOST_SECONDS = 3.0
"""Longest time per direction, once the fewest copies are done."""
IN_MEMORY = ("tmpfs", "ramfs")

Work = Callable[[File], float]
"""Tells how many seconds it took."""


class DiskRates(NamedTuple):
    """Rates of copies from and to a disk.

    free: bytes.
    direct: False if the page cache could not be passed by, only flushed.
    """

    read: CopyRates
    write: CopyRates
    free: int
    direct: bool


def disk_rates(folder: Path, copy_bytes: int = COPY_BYTES, most: int = MOST_COPIES) -> DiskRates:
    """Measure a disk's rates.

    folder: where the files are made.
    copy_bytes: size of one copy.
    most: number of copies in a file at most.

    Raises InputError, one line.
    """
    try:
        free = _checked(folder, copy_bytes)
        small = _small(Disk(SMALL, folder))
        disk = Disk(copy_bytes * min(most, free // copy_bytes), folder)
        return _measured(disk, copy_bytes, most, free, small)
    except OSError as error:
        raise InputError(f"{folder}: its disk cannot be measured: {error.strerror}") from None


def _checked(folder: Path, copy_bytes: int) -> int:
    """Return the free bytes of a folder on a disk."""
    if not folder.is_dir():
        raise InputError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    kind = file_system(folder)
    if kind in IN_MEMORY:
        raise InputError(f"{folder}: lies in memory ({kind}), not on a disk: name another folder")
    free = shutil.disk_usage(folder).free
    if free < FEWEST_COPIES * copy_bytes:
        raise InputError(f"{folder}: too little room to measure the disk: {free:,} B are free")
    return free


def file_system(folder: Path) -> str | None:
    """Return the kind of a folder's file system, like 'ext4'; None if the system does not say."""
    device = os.stat(folder).st_dev
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    fields = next((row for row in map(str.split, mounts) if row[2] == number), None)
    return None if fields is None else fields[fields.index("-") + 1]  # after the optional ones


def _works(disk: Disk, size: int) -> tuple[Work, Work]:
    """Return functions that read and write a file of `size` bytes, and return the seconds."""
    source, target = (Host().block(size).open().bytes for _ in range(2))
    source.random_(0, 256)  # zeros might be compressed

    def write(file: File) -> float:
        start = perf_counter()
        file.write(source)
        if not disk.direct:
            disk.flush()
        return perf_counter() - start

    def read(file: File) -> float:
        if not disk.direct:
            disk.flush()
        start = perf_counter()
        file.read(target)
        return perf_counter() - start

    return read, write


def _small(disk: Disk) -> tuple[Rate, Rate]:
    (read, write), file = _works(disk, SMALL), disk.file(SMALL)
    written = repeated("disk write, small", SMALL, lambda: write(file))
    return repeated("disk read, small", SMALL, lambda: read(file)), written


def _measured(disk: Disk, size: int, most: int, free: int, small: tuple[Rate, Rate]) -> DiskRates:
    read, write = _works(disk, size)
    files = [disk.file(size) for _ in range(min(most, free // size))]
    files = files[: len(_timed(write, files))]  # later they are written over, as in iterations
    alone = [_timed(work, files) for work in (read, write)]
    # Each direction has files of its own: none is read while it is written.
    half = len(files) // 2
    both = _both((read, write), (files[:half], files[half:]))
    names = ("disk read", "disk write", "disk read, both at once", "disk write, both at once")
    rates = [rate_of(name, size, taken) for name, taken in zip(names, (*alone, *both), strict=True)]
    ways = [CopyRates(small[way], (rates[way],), (rates[way + 2],)) for way in range(2)]
    return DiskRates(ways[0], ways[1], free, disk.direct)


def _timed(work: Work, files: Sequence[File]) -> list[float]:
    """Return the seconds, copy by copy."""
    taken: list[float] = []
    while len(taken) < len(files) and (len(taken) < FEWEST_COPIES or sum(taken) < MOST_SECONDS):
        taken.append(work(files[len(taken)]))
    return taken


def _both(works: Sequence[Work], files: Sequence[Sequence[File]]) -> list[list[float]]:
    """Time both works at once, each going on until it has done its files twice, or long enough."""
    ended, taken = Event(), list[list[float]]([[], []])
    enough = [2 * len(each) for each in files]

    def go_on(way: int) -> None:
        try:
            for file in cycle(files[way]):
                taken[way].append(works[way](file))
                counts = [len(each) for each in taken]
                late = sum(taken[way]) > MOST_SECONDS and min(counts) >= FEWEST_COPIES
                if late or all(count >= most for count, most in zip(counts, enough, strict=True)):
                    return
                if ended.is_set():
                    taken[way].pop()  # it ended alone
                    return
        finally:
            ended.set()

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(go_on, way) for way in range(2)]:
            one.result()
    return taken
