"""Machines as documents: alone in a file, or the `machine` of a graph or a schedule.

device: {capacity: 12GB}
host: {capacity: 64GB}
disk: {capacity: 1TB}
links: {d2h: 12e9, h2d: 12e9, disk_read: 3e9, disk_write: 2e9}     # bytes/s
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .documents import read_document
from .errors import InputError
from .fields import check_fields, mapping, size
from .machine import Links, Machine, Memory
from .units import parse_rate

_LINKS = ("d2h", "h2d", "disk_read", "disk_write")


def load_machine(path: Path) -> Machine:
    """Raises InputError with one line: the file, the field, the fault."""
    try:
        return machine_from_document(read_document(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def machine_from_document(document: object) -> Machine:
    """Raises ValueError with the field and the fault."""
    row = mapping(document, "a machine")
    check_fields(row, (), ("device", "host", "disk", "links"))
    device, host, disk = (_capacity(row.get(memory.word), memory.word) for memory in Memory)
    links = mapping(row.get("links", {}), "links")
    check_fields(links, (), _LINKS)
    return Machine(device, host, disk, Links(*(_rate(links.get(link), link) for link in _LINKS)))


def machine_to_document(machine: Machine) -> dict[str, Any]:
    """What machine_from_document reads back; unknown capacities and missing links are left out."""
    document: dict[str, Any] = {
        memory.word: {"capacity": capacity}
        for memory in Memory
        if (capacity := machine.capacity(memory)) is not None
    }
    links = {link: rate for link in _LINKS if (rate := getattr(machine.links, link)) is not None}
    if links:
        document["links"] = links
    return document


def _capacity(value: object, memory: str) -> int | None:
    if value is None:
        return None
    row = mapping(value, memory)
    check_fields(row, (), ("capacity",))
    return None if row.get("capacity") is None else size(row["capacity"], f"{memory}.capacity")


def _rate(value: object, link: str) -> float | None:
    try:
        return None if value is None else parse_rate(value)
    except InputError as error:
        raise ValueError(f"field {link!r}: {error}") from None
