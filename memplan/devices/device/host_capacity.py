"""Host memory that this process can have: limits of the machine, of its control groups, and of locked memory.

A container sees the machine's /proc/meminfo and has a separate limit, given by control groups of version 1 or
2: that of the process's own group and of all groups above it.
"""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

GROUPS = Path("/proc/self/cgroup")
MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
MEMINFO = Path("/proc/meminfo")


class Limit(NamedTuple):
    """A limit in bytes, and the file or call that sets it."""

    bytes: int
    source: str


def host_memory() -> Limit:
    """Return the memory of the machine, or of the container that this is."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    known = [Limit(total, "the machine's")]
    for folder, limit, _used in _groups():
        if (size := _number(folder / limit)) is not None:
            known.append(Limit(size, str(folder / limit)))
    return min(known)


def available_bytes() -> int | None:
    """Return the bytes of host memory that are available now; None if the system does not say.

    Memory that only caches files counts as available.
    """
    rooms = [room for folder, limit, used in _groups() if (room := _room(folder, limit, used)) is not None]
    if (there := _field(MEMINFO, "MemAvailable:")) is not None:
        rooms.append(1024 * there)  # from KiB
    return min(rooms, default=None)


def lockable_bytes() -> int | None:
    """Return the limit of `ulimit -l` in bytes; None for no limit."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def host_pages(size: int) -> Tensor:
    """Allocate separate pages straight from the system, given back when nobody holds them. Raises OSError."""
    return torch.from_numpy(np.frombuffer(mmap.mmap(-1, size), np.uint8))


def _groups() -> Iterator[tuple[Path, str, str]]:
    """Yield, per group with a limit of memory, its folder and the names of the files of limit and use."""
    try:
        lines = GROUPS.read_text().splitlines()
    except OSError:
        lines = []
    paths = {controllers: path for _number, controllers, path in (line.split(":", 2) for line in lines)}
    first = next((path for controllers, path in paths.items() if "memory" in controllers.split(",")), "/")
    for mount, path, limit, used in (
        # The line of version 2 names no controllers.
        *((mount, paths.get("", "/"), "memory.max", "memory.current") for mount in MOUNTS),
        (MOUNTS[0] / "memory", first, "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        folder = mount / path.lstrip("/")
        while folder.is_relative_to(mount):
            if (folder / limit).is_file():
                yield folder, limit, used
            folder = folder.parent


def _room(folder: Path, limit: str, used: str) -> int | None:
    most, now = _number(folder / limit), _number(folder / used)
    if most is None or now is None:
        return None
    statistics = folder / "memory.stat"
    # Pages of files, which the kernel drops when memory is needed.
    cached = _field(statistics, "total_inactive_file") or _field(statistics, "inactive_file") or 0
    return max(0, most - now + min(cached, now))


def _number(file: Path) -> int | None:
    """Read a number; None for `max`, for a file that can't be read, and for version 1's number that stands
    for no limit.
    """
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < 2**62 else None


def _field(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
