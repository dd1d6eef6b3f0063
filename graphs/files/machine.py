"""Machines as documents: alone in a file, or the `machine` of a graph or a schedule.

device: {capacity: 12GB}
host: {capacity: 64GB}
disk: {capacity: 1TB}
links: {d2h: 12e9, h2d: 12e9, disk_read: 3e9, disk_write: 2e9}    # bytes/s
updates: {device: 16.6e9, host: 1.1e9}                            # bytes of float32 weights per second, AdamW
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from ..machine import Links, Machine, Memory, Updates
from ..units import parse_rate
from .documents import read_document
from .fields import Row, check_fields, mapping, size

_LINKS = ("d2h", "h2d", "disk_read", "disk_write")
_UPDATES = ("device", "host")


def load_machine(path: Path) -> Machine:
    """Raises InputError with one line: the file, the field, the fault."""
    try:
        return machine_from_document(read_document(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def machine_from_document(document: object) -> Machine:
    """Raises ValueError with the field and the fault."""
    row = mapping(document, "a machine")
    check_fields(row, (), ("device", "host", "disk", "links", "updates"))
    device, host, disk = (_capacity(row.get(memory.word), memory.word) for memory in Memory)
    links, updates = _rates(row, "links", _LINKS), _rates(row, "updates", _UPDATES)
    return Machine(device, host, disk, Links(*links), Updates(*updates))


def machine_to_document(machine: Machine) -> dict[str, Any]:
    """What machine_from_document reads back; what is unknown or missing is left out."""
    document: dict[str, Any] = {
        memory.word: {"capacity": capacity}
        for memory in Memory
        if (capacity := machine.capacity(memory)) is not None
    }
    for field, names in (("links", _LINKS), ("updates", _UPDATES)):
        rates = getattr(machine, field)
        known = {name: rate for name in names if (rate := getattr(rates, name)) is not None}
        if known:
            document[field] = known
    return document


def _capacity(value: object, memory: str) -> int | None:
    if value is None:
        return None
    row = mapping(value, memory)
    check_fields(row, (), ("capacity",))
    return None if row.get("capacity") is None else size(row["capacity"], f"{memory}.capacity")


def _rates(row: Row, field: str, names: tuple[str, ...]) -> list[float | None]:
    rates = mapping(row.get(field, {}), field)
    check_fields(rates, (), names)
    return [_rate(rates.get(name), name) for name in names]


def _rate(value: object, name: str) -> float | None:
    try:
        return None if value is None else parse_rate(value)
    except InputError as error:
        raise ValueError(f"field {name!r}: {error}") from None
