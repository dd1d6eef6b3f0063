"""This machine, measured: what its memories hold, how fast its links and its updates are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from ...graphs.machine import Links, Machine, Updates
from ...graphs.units import format_bytes
from ..device.choice import best_device, check_device, device_of
from ..device.device import Device, StreamDevice
from ..device.host_capacity import host_memory
from ..device.threads import processors, update_threads
from .disk_rates import disk_rates
from .link_rates import link_rates
from .pinnable import pinnable
from .rates import Rate, all_rates, figure, pair_of
from .update_rates import update_rates


class Measured(NamedTuple):
    """This machine and how it was measured.

    device: its name.
    rates: all that were measured.
    notes: remarks on them, line by line.
    """

    machine: Machine
    device: str
    rates: tuple[Rate, ...]
    notes: tuple[str, ...]


def measure_machine(
    device: str | None = None, disk: Path | None = None, report: Callable[[str], None] = lambda _line: None
) -> Measured:
    """Measure the device, the host, the links between them and a disk.

    device: cuda or cpu; by default cuda if there is a GPU.
    disk: a folder on the disk to measure; by default none is.
    report: called with a line before each measurement.
    Raises InputError, one line.
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
    copies = link_rates(device)
    report("measuring updates")
    host = update_rates(None)
    where = device_of(device)
    memory = device_room(where)
    near = host if memory is None else update_rates(device)
    if memory is None:
        notes.append("without CUDA device and host are the same memory, and a copy is the processor's")
    report("pinning host memory")
    host_limit, pins = host_memory(), pinnable(device_of(device))
    notes.append(f"host: {format_bytes(host_limit.bytes)} by {host_limit.source}; pinned: {pins.source}")
    pair = pair_of(("d2h", "h2d"), copies)
    rates = [*all_rates(*copies), *(() if memory is None else near), *host]
    machine = Machine(
        host_limit.bytes if memory is None else memory,
        host_limit.bytes,
        links=Links(*pair.links),
        shared=pair.shared,
        joint_rates=pair.joint_rates,
        updates=Updates(*map(figure, (near[0], host[0], near[1], host[1]))),
        pinned=pins.bytes,
    )
    if found is not None:
        rates += all_rates(found.read, found.write)
        if not found.direct:
            notes.append(
                f"{disk} can't be read past the page cache (no O_DIRECT): copies were flushed and dropped, "
                "those of a plan stay in it while there is memory"
            )
        disk_pair = pair_of(("disk_read", "disk_write"), (found.read, found.write))
        read, write = disk_pair.links
        machine = replace(
            machine,
            disk_capacity=found.free,
            links=replace(machine.links, disk_read=read, disk_write=write),
            shared=(*machine.shared, *disk_pair.shared),
            joint_rates=(*machine.joint_rates, *disk_pair.joint_rates),
        )
    return Measured(machine, device_of(device).name(), tuple(rates), tuple(notes))


def device_room(device: Device) -> int | None:
    """Return the bytes of the device that this process can have for tensors, those that it has included.

    None if its memory is the host's.
    """
    constant, free = device.constant_bytes(), device.free_bytes()
    held = device.allocated_bytes() if isinstance(device, StreamDevice) else 0
    return None if free is None else free + held - constant
