"""Machines as documents: alone in a file, or the `machine` of a graph or a schedule.

device: {capacity: 12GB}
host: {capacity: 64GB, pinned: 16GB}
disk: {capacity: 1TB}
links: {d2h: {rate: 12e9, pageable: 4e9}, h2d: {rate: 12e9, latency: 20us, pageable: 5e9}, disk_read: 3e9}
                                           # bytes/s, seconds; pageable: where host memory is not pinned
updates: {device: 16.6e9, host: 1.1e9}     # bytes of float32 weights per second by AdamW; device_fused and
                                           # host_fused: by its fused kernel
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from ..errors import InputError
from ..machine import Link, Links, Machine, Memory, Updates
from ..units import FEW_BYTES, bare_number, parse_rate, parse_seconds
from .documents import read_document
from .fields import Row, check_fields, mapping, size

_LINKS = ("d2h", "h2d", "disk_read", "disk_write")
_UPDATES = ("device", "host", "device_fused", "host_fused")


def load_machine(path: Path) -> Machine:
    """Raises InputError with one line: the file, the field, the fault."""
    try:
        document = read_document(path)
        machine = machine_from_document(document)
        _check_meant(cast(Row, document))
        return machine
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


_SLOW = 1e6
"""Bytes a second: no link or processor of a machine that trains is as slow."""
_LONG = 1.0
"""Seconds: no copy waits so long before it begins."""


def _check_meant(document: Row) -> None:
    """Raises ValueError where a file's number without a unit is more likely of gigabytes, or microseconds:
    rates, and beside rates capacities. With a unit, also B/s, any number holds."""
    rows = {**document.get("updates", {}), **document.get("links", {})}
    for name, row in rows.items():
        link: Row = cast(Row, row) if isinstance(row, dict) else {"rate": row}
        for field in ("rate", "pageable"):
            rate = bare_number(link.get(field))
            if rate is not None and rate < _SLOW:
                unit, said = "GB/s" if rate < FEW_BYTES else "MB/s", f"{rate:.10g}"
                raise ValueError(
                    f"field {name!r}: {said} without a unit is {said} bytes a second, slower than any: "
                    f"write {said}{unit}, or {said}B/s"
                )
        latency = bare_number(link.get("latency"))
        if latency is not None and latency >= _LONG:
            said = f"{latency:.10g}"
            raise ValueError(f"field {name!r}: latency {said} is in seconds: write {said}us, or {said}s")
    for memory in Memory:
        for field, value in cast(Row, document.get(memory.word) or {}).items() if rows else ():
            size = bare_number(value)
            if size is not None and 0 < size < FEW_BYTES:
                said = f"{size:.10g}"
                raise ValueError(
                    f"field '{memory.word}.{field}': {said} without a unit is bytes: "
                    f"write {said}GB, or {said}B"
                )


def machine_from_document(document: object) -> Machine:
    """Raises ValueError with the field and the fault."""
    row = mapping(document, "a machine")
    check_fields(row, (), ("device", "host", "disk", "links", "updates"))
    device, host, disk = (_capacity(row.get(memory.word), memory.word) for memory in Memory)
    links = _fields(row, "links", _LINKS)
    updates = _fields(row, "updates", _UPDATES)
    machine = Machine(
        device,
        host,
        disk,
        Links(*(_link(links.get(name), name) for name in _LINKS)),
        Updates(*(_rate(updates.get(name), name) for name in _UPDATES)),
        _capacity(row.get("host"), "host", "pinned"),
    )
    return (machine.without_pinned() if machine.pinned == 0 else None) or machine


def machine_to_document(machine: Machine) -> dict[str, Any]:
    """What machine_from_document reads back; what is unknown or missing is left out."""
    document: dict[str, Any] = {
        memory.word: {"capacity": capacity}
        for memory in Memory
        if (capacity := machine.capacity(memory)) is not None
    }
    if (pinned := 0 if machine.unpinned else machine.pinned) is not None:
        document.setdefault("host", {})["pinned"] = pinned
    links, updates = vars(machine.links), vars(machine.updates)
    if known := {
        name: _link_to_document(link, machine.unpinned and "disk" not in name)
        for name, link in links.items()
        if link is not None
    }:
        document["links"] = known
    if known := {name: rate for name, rate in updates.items() if rate is not None}:
        document["updates"] = known
    return document


def _link_to_document(link: Link, unpinned: bool) -> float | dict[str, float]:
    pageable = link.rate if unpinned else link.pageable
    more = {name: value for name, value in (("latency", link.latency), ("pageable", pageable)) if value}
    return {"rate": link.rate, **more} if more else link.rate


def _capacity(value: object, memory: str, field: str = "capacity") -> int | None:
    if value is None:
        return None
    row = mapping(value, memory)
    check_fields(row, (), ("capacity", "pinned") if memory == "host" else ("capacity",))
    return None if row.get(field) is None else size(row[field], f"{memory}.{field}")


def _fields(row: Row, field: str, names: tuple[str, ...]) -> Row:
    fields = mapping(row.get(field, {}), field)
    check_fields(fields, (), names)
    return fields


def _link(value: object, name: str) -> Link | float | None:
    """A rate, or {rate, latency}; of those between device and host also pageable."""
    if not isinstance(value, dict):
        return _rate(value, name)
    try:
        row = mapping(cast(object, value), name)
        check_fields(row, ("rate",), ("latency",) if name.startswith("disk") else ("latency", "pageable"))
        pageable = None if row.get("pageable") is None else parse_rate(row["pageable"])
        return Link(parse_rate(row["rate"]), parse_seconds(row.get("latency", 0.0)), pageable)
    except (InputError, ValueError) as error:
        raise ValueError(f"field {name!r}: {error}") from None


def _rate(value: object, name: str) -> float | None:
    try:
        return None if value is None else parse_rate(value)
    except InputError as error:
        raise ValueError(f"field {name!r}: {error}") from None
