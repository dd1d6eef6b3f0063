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
from ...graphs.files.machine import load_machine, save_machine
from ...graphs.folders.cache import cache_folder
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
    file = _file(where)
    if file is not None:
        with suppress(InputError, OSError):
            machine, day = load_machine(file), date.fromtimestamp(file.stat().st_mtime)
            line = f"machine auto: {where.name()}, measured on {day}, kept in {file}"
            return Kept(_with_memory(machine, where), line, is_new=False)
    start = perf_counter()
    machine = measure_machine(device, report=report).machine
    line = f"machine auto: {where.name()}, measured in {duration(perf_counter() - start)}"
    return Kept(_with_memory(machine, where), f"{line}, {_keep(machine, file)}", is_new=True)


def _file(device: Device) -> Path | None:
    """Return the machine's file; None for a user without a cache."""
    folder, driver = cache_folder(), device.surroundings().get("driver", "")
    words = (platform.node(), device.name(), str(driver))
    name = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", word) for word in words if word)
    return folder and folder / "machines" / f"{name}.yaml"


def _keep(machine: Machine, file: Path | None) -> str:
    """Write the file. Returns words that say so: a disk that is full or read-only costs only the copy."""
    if file is not None:
        with suppress(InputError, OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            save_machine(machine, file)
            return f"kept in {file}"
    return "not kept: the cache folder can't be written"


def _with_memory(machine: Machine, device: Device) -> Machine:
    host = host_memory().bytes
    return replace(machine, device_capacity=device_room(device) or host, host_capacity=host)
