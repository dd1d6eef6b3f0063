"""This machine, measured: what its memories hold, how fast its links and its updates are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from ...graphs.machine import Link, Links, Machine, Updates
from ...graphs.units import format_bytes
from ..device.choice import best_device, check_device, device_of
from ..device.host_room import host_memory
from ..device.threads import processors, update_threads
from .disk_rates import DiskRates, disk_rates
from .link_rates import link_rates
from .pinnable import pinnable
from .rates import Rate, latency
from .update_rates import update_rates


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

    The links have the rates of both ways at once: a schedule copies both ways all the time. Their latencies
    are those of each way alone. Raises InputError, one line.
    """
    device = device or best_device()
    check_device(device)
    if disk is not None:
        report("measuring the disk")
    found = None if disk is None else disk_rates(disk)
    notes = [
        f"{torch.get_num_threads()} threads on the processor, {update_threads()} of them for updates on the "
        f"host; this process may run on {processors()} processors"
    ]
    report("measuring copies")
    links = link_rates(device)
    report("measuring updates")
    host = update_rates(None)
    where = device_of(device)
    constant, free = where.constant_bytes(), where.free_bytes()
    memory = None if free is None else free - constant
    near = host if memory is None else update_rates(device)
    if memory is None:
        notes.append("without CUDA device and host are the same memory, and a copy is the processor's")
    report("pinning host memory")
    host_limit, pins = host_memory(), pinnable(device_of(device))
    notes.append(f"host: {format_bytes(host_limit.bytes)} by {host_limit.source}; pinned: {pins.source}")
    copied = [*links.small, *links.d2h, *links.h2d, *links.both, *links.pageable]
    rates = [*copied, *(() if memory is None else near), *host]
    pageable = _figure(links.pageable[-1]) if links.pageable else None
    ways = zip(links.small, (links.d2h[-1], links.h2d[-1]), strict=True)
    d2h, h2d = (_link(links.both[-1], small, alone, pageable) for small, alone in ways)
    machine = Machine(
        host_limit.bytes if memory is None else memory,
        host_limit.bytes,
        links=Links(d2h, h2d),
        updates=Updates(*map(_figure, (near[0], host[0], near[1], host[1]))),
        pinned=pins.bytes,
    )
    if found is not None:
        rates += [found.small_read, found.small_write]
        rates += [found.read, found.write, found.both_read, found.both_write]
        if not found.direct:
            notes.append(
                f"{disk} can't be read past the page cache (no O_DIRECT): copies were flushed and dropped, "
                "those of a plan stay in it while there is memory"
            )
        machine = _with_disk(machine, found)
    return Measured(machine, device_of(device).name(), tuple(rates), tuple(notes))


def _with_disk(machine: Machine, found: DiskRates) -> Machine:
    read = _link(found.both_read, found.small_read, found.read)
    write = _link(found.both_write, found.small_write, found.write)
    links = replace(machine.links, disk_read=read, disk_write=write)
    return replace(machine, disk_capacity=found.free, links=links)


def _link(both: Rate, small: Rate, alone: Rate, pageable: float | None = None) -> Link:
    return Link(_figure(both), float(f"{latency(small, alone):.3g}"), pageable)


def _figure(rate: Rate) -> float:
    """The median with the three digits that it is good for."""
    return float(f"{rate.median:.3g}")
