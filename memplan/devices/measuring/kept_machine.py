"""This machine's links and update rates, measured once and kept in the user's cache: `machine="auto"`.

A file per computer, card and driver. Memory is not kept: how much of it is free is asked each time.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from ...graphs.errors import InputError
from ...graphs.files.documents import document_bytes, parse_document
from ...graphs.files.machine import machine_file, machine_from_document
from ...graphs.folders.cache import user_cache
from ...graphs.machine import Machine
from ...graphs.units import duration
from ..device.choice import best_device, device_of
from ..device.device import Device
from ..device.host_capacity import host_memory
from .this_machine import device_room, measure_machine

AUTO = "auto"
"""The name of this machine, where a machine file or a GPU's name is taken."""


class Kept(NamedTuple):
    """This machine.

    line: where its figures come from, for the user.
    is_new: it was measured now.
    """

    machine: Machine
    line: str
    is_new: bool


def auto_machine(report: Callable[[str], None] = lambda _line: None) -> Kept:
    """Return this machine with its GPU; see `kept_machine`. Raises InputError if there is no GPU."""
    device = best_device()
    if device == "cpu":
        raise InputError(
            "machine 'auto' measures the links of a GPU, and PyTorch finds none here: give a name, like "
            "'rtx3060', or a machine file (plan machine -o machine.yaml)"
        )
    return kept_machine(device, report)


def kept_machine(device: str, report: Callable[[str], None] = lambda _line: None) -> Kept:
    """Return this machine as it was measured before; measure it if it was not, or a file can't be read.

    report: called with a line before each measurement.
    """
    where = device_of(device)
    folder, file = user_cache() / "machines", _file(where)
    with suppress(InputError, ValueError, OSError):
        if (raw := folder.read(file.name)) is not None and folder.path is not None:
            machine = machine_from_document(parse_document(raw, file))
            place = folder.path / file
            day = date.fromtimestamp(place.stat().st_mtime)
            line = f"machine auto: {where.name()}, measured on {day}, kept in {place}"
            return Kept(_with_memory(machine, where), line, is_new=False)
    start = perf_counter()
    machine = measure_machine(device, report=report).machine
    line = f"machine auto: {where.name()}, measured in {duration(perf_counter() - start)}"
    is_kept = folder.write(file.name, document_bytes(machine_file(machine), file))
    where_kept = f"kept in {folder.path and folder.path / file}" if is_kept else "not kept"
    return Kept(_with_memory(machine, where), f"{line}, {where_kept}", is_new=True)


def _file(device: Device) -> Path:
    """Return the name of the machine's file."""
    driver = device.surroundings().get("driver", "")
    words = (platform.node(), device.name(), str(driver))
    return Path("-".join(re.sub(r"[^A-Za-z0-9.]+", "-", word) for word in words if word) + ".yaml")


def _with_memory(machine: Machine, device: Device) -> Machine:
    host = host_memory().bytes
    return replace(machine, device_capacity=device_room(device) or host, host_capacity=host)
