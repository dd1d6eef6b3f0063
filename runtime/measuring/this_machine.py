"""This machine, measured: what its memories hold, how fast its links and its updates are."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from ...graphs.machine import Links, Machine, Updates
from ..device.choice import best_device, check_device, device_of
from .disk_rates import disk_rates
from .link_rates import link_rates
from .rates import Rate
from .update_rates import update_rate

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Measured(NamedTuple):
    """device: its name. rates: all that were measured. notes: what to know about them, line by line."""

    machine: Machine
    device: str
    rates: tuple[Rate, ...]
    notes: tuple[str, ...]


def measure_machine(
    device: str | None = None, disk: Path | None = None, report: Callable[[str], None] = lambda _line: None
) -> Measured:
    """device: cuda where there is one, else cpu. disk: a folder on the disk to measure. report: takes lines.

    The links have the rates of both ways at once: a schedule copies both ways all the time. Raises
    InputError, one line.
    """
    device = device or best_device()
    check_device(device)
    if disk is not None:
        report("measuring the disk")
    found = None if disk is None else disk_rates(disk)
    notes = [f"{torch.get_num_threads()} threads on the processor"]
    report("measuring copies")
    links = link_rates(device)
    report("measuring updates")
    host = update_rate("cpu", "host")
    memory = device_of(device).free_bytes()
    near = host if memory is None else update_rate(device, "device")
    if memory is None:
        notes.append("without CUDA device and host are the same memory, and a copy is the processor's")
    rates = [*links.d2h, *links.h2d, *links.both, *(() if memory is None else (near,)), host]
    both = _figure(links.both[-1])
    machine = Machine(
        host_memory() if memory is None else memory,
        host_memory(),
        links=Links(both, both),
        updates=Updates(_figure(near), _figure(host)),
    )
    if found is not None:
        rates += [found.read, found.write]
        if not found.direct:
            notes.append(f"{disk} can't be read past the page cache: its blocks were flushed and dropped")
        machine = _with_disk(machine, found.free, found.read, found.write)
    return Measured(machine, device_of(device).name(), tuple(rates), tuple(notes))


def _with_disk(machine: Machine, free: int, read: Rate, write: Rate) -> Machine:
    links = replace(machine.links, disk_read=_figure(read), disk_write=_figure(write))
    return replace(machine, disk_capacity=free, links=links)


def _figure(rate: Rate) -> float:
    """The median with the three digits that it is good for."""
    return float(f"{rate.median:.3g}")


def host_memory() -> int:
    """The memory of the machine, or of the container that this is."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *filter(None, map(_limit, CGROUP_LIMITS))])


def _limit(file: str) -> int | None:
    try:
        text = Path(file).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
