"""Machines as documents: alone in a file, or the `machine` of a graph or a schedule.

device: {capacity: 12GB}
host: {capacity: 64GB, pinned: 16GB}
disk: {capacity: 1TB}
links: {d2h: {rate: 12e9, pageable: 4e9}, h2d: {rate: 12e9, latency: 20us, pageable: 5e9}, disk_read: 3e9}
                                           # bytes/s, seconds; pageable: if host memory is not pinned;
                                           # measured: [[1MB, 110us], …], copies of these sizes
    peers: {rate: 45e9, latency: 30us, ranks: 8}   # (in links) the network between the ranks of sharded
                                           # training: bytes that a device receives in a second;
                                           # replicas: {count: 2, rate: 11e9, latency: 30us}, sets of so
                                           # many ranks that train together, and the network between them
updates: {device: 16.6e9, host: 1.1e9}     # bytes of float32 weights per second by AdamW; device_fused and
                                           # host_fused: by its fused kernel

In place of `disk` and its two links, the memories below the host may be listed, in a row from the host down:

memories:
  - {name: cxl, capacity: 256GB, write: 30e9, read: {rate: 32e9, latency: 1us}}
  - {name: disk, capacity: 4TB, write: 2e9, read: 3e9}    # write: from the memory above; read: to it

Links that share a resource (shared.py; `cpu` stands for work on the CPU): in turns, or up to a rate:

shared: [[disk_write, disk_read], {links: [d2h, h2d], rate: 40GB/s}]

A file may have a section `gpu`, the figures from which operations are estimated where --gpu names the file:
graphs/machines/gpus.py reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import Any, cast

from ..errors import InputError
from ..machine import MOST_MEMORIES, Link, Links, Machine, Memory, Peers, Replicas, Tier, Updates
from ..units import FEW_BYTES, SLOW_RATE, bare_number, check_rate_unit, parse_rate, parse_seconds
from .documents import read_document, write_document
from .fields import Row, check_fields, mapping, sequence, size, text, twice
from .shared import check_joint_rates, joint_rows, shared_document, shared_of

_LINKS = ("d2h", "h2d", "disk_read", "disk_write", "peers")
_MOST_RANKS = 1 << 20
_MOST_LISTED = MOST_MEMORIES - Memory.DISK
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_RESERVED = ("device", "host", "both", "pinned", "peers")
"""Words with another meaning where a schedule names a memory."""
_UPDATES = ("device", "host", "device_fused", "host_fused")


def load_machine(path: Path) -> Machine:
    """Load a machine file. Raises InputError with one line: the file, the field, the fault."""
    try:
        document = read_document(path)
        machine = machine_from_document(document)
        _check_meant(cast(Row, document))
        return machine
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


_LONG = 1.0
"""Seconds: no copy waits so long before it begins."""


def _check_meant(document: Row) -> None:
    """Raise ValueError if a number without a unit is more likely of gigabytes, or microseconds, than of
    bytes.

    Rates are checked, and capacities too if the file has rates. With a unit, also B/s, any number holds.
    """
    tiers: list[Row] = document.get("memories") or []
    rows = {**document.get("updates", {}), **document.get("links", {})}
    peers: Row = rows.get("peers") or {}
    if "replicas" in peers:
        rows["replicas"] = peers["replicas"]
    rows |= {f"{tier['name']}.{way}": tier[way] for tier in tiers for way in ("write", "read") if way in tier}
    for joint in joint_rows(document):
        rows[f"shared {', '.join(joint['links'])}"] = joint["rate"]
    for name, row in rows.items():
        link: Row = cast(Row, row) if isinstance(row, dict) else {"rate": row}
        for field in ("rate", "pageable"):
            try:
                check_rate_unit(link.get(field))
            except InputError as error:
                raise ValueError(f"field {name!r}: {error}") from None
        latency = bare_number(link.get("latency"))
        if latency is not None and latency >= _LONG:
            said = f"{latency:.10g}"
            raise ValueError(f"field {name!r}: latency {said} is in seconds: write {said}us, or {said}s")
    for field, value in _sizes(document) if rows else ():
        size = bare_number(value)
        if size is not None and 0 < size < FEW_BYTES:
            said = f"{size:.10g}"
            raise ValueError(f"field {field!r}: {said} without a unit is bytes: write {said}GB, or {said}B")


def _sizes(document: Row) -> Iterator[tuple[str, object]]:
    """Yield all numbers of bytes, each with its place in the document."""
    for name in ("device", "host", "disk"):
        for field, value in cast(Row, document.get(name) or {}).items():
            yield f"{name}.{field}", value
    for tier in document.get("memories") or ():
        yield f"{tier['name']}.capacity", tier.get("capacity")


def machine_from_document(document: object) -> Machine:
    """Return the machine of a document. Raises ValueError with the field and the fault."""
    row = mapping(document, "a machine")
    check_fields(row, (), ("device", "host", "disk", "memories", "links", "updates", "shared", "gpu"))
    links = _fields(row, "links", _LINKS)
    updates = _fields(row, "updates", _UPDATES)
    disk, *deeper = _below_host(row, links)
    shared, joint_rates = shared_of(row, [disk, *deeper])
    machine = Machine(
        device_capacity=_capacity(row.get("device"), "device"),
        host_capacity=_capacity(row.get("host"), "host"),
        disk_capacity=disk.capacity,
        links=Links(
            _link(links.get("d2h"), "d2h"),
            _link(links.get("h2d"), "h2d"),
            disk.read,
            disk.write,
            peers=_peers(links.get("peers")),
        ),
        updates=Updates(*(_rate(updates.get(name), name) for name in _UPDATES)),
        pinned=_capacity(row.get("host"), "host", "pinned"),
        disk_name=disk.name,
        deeper=tuple(deeper),
        shared=shared,
        joint_rates=joint_rates,
    )
    check_joint_rates(machine)
    # Without pinned memory the links have their pageable rates, as far as these are known.
    return (machine.without_pinned() if machine.pinned == 0 else None) or machine


def _below_host(row: Row, links: Row) -> list[Tier]:
    """Return the memories below the host: one called disk, or those that are listed."""
    if row.get("memories") is None:
        read, write = (_link(links.get(name), name) for name in ("disk_read", "disk_write"))
        return [Tier("disk", _capacity(row.get("disk"), "disk"), write, read)]
    if taken := [name for name in ("disk", "disk_read", "disk_write") if name in row or name in links]:
        raise ValueError(f"field 'memories' replaces {taken[0]!r}: list the disk there")
    listed = sequence(row["memories"], "memories")
    if not 1 <= len(listed) <= _MOST_LISTED:
        raise ValueError(f"field 'memories' lists 1 to {_MOST_LISTED} memories, not {len(listed)}")
    tiers = [_tier(each) for each in listed]
    names = [*_RESERVED, *(tier.name for tier in tiers)]
    if len(set(names)) < len(names):
        raise ValueError(f"field 'memories': the name {twice(names)!r} is taken")
    return tiers


def _tier(value: object) -> Tier:
    row = mapping(value, "a memory")
    check_fields(row, ("name",), ("capacity", "write", "read"))
    name = text(row["name"], "name")
    if not _NAME.fullmatch(name):
        raise ValueError(f"field 'memories': {name!r} is no name: letters a to z, digits, '-' and '_'")
    capacity = None if row.get("capacity") is None else size(row["capacity"], f"{name}.capacity")
    write, read = (_link(row.get(way), f"{name}.{way}") for way in ("write", "read"))
    return Tier(name, capacity, write, read)


def machine_to_document(machine: Machine) -> dict[str, Any]:
    """Return the document that machine_from_document reads back; what is unknown or missing is left out."""
    device, host, *below = machine.hierarchy.tiers
    listed = machine.disk_name != "disk" or bool(machine.deeper)
    document: dict[str, Any] = {
        tier.name: {"capacity": tier.capacity}
        for tier in (device, host, *(() if listed else below))
        if tier.capacity is not None
    }
    # A machine without pinned memory was read from `pinned: 0`, which gives it back.
    if (pinned := 0 if machine.unpinned else machine.pinned) is not None:
        document.setdefault("host", {})["pinned"] = pinned
    if listed:
        document["memories"] = [_tier_to_document(tier) for tier in below]
    links, updates = vars(machine.links), vars(machine.updates)
    if known := {
        name: _link_to_document(link, machine.unpinned and "disk" not in name)
        for name, link in links.items()
        # The links of listed memories are written with their memories.
        if link is not None and not (listed and "disk" in name)
    }:
        document["links"] = known
    if known := {name: rate for name, rate in updates.items() if rate is not None}:
        document["updates"] = known
    if shared := shared_document(machine):
        document["shared"] = shared
    return document


def save_machine(machine: Machine, path: Path) -> None:
    """Write a machine file."""
    write_document(machine_file(machine), path)


def machine_file(machine: Machine) -> Row:
    """Return the document that load_machine reads back.

    Numbers that it would take for gigabytes or microseconds (_check_meant) have their unit.
    """
    document = machine_to_document(machine)
    tiers: list[Row] = document.get("memories", [])
    ways = [(tier, way) for tier in tiers for way in ("write", "read") if way in tier]
    links: Row = document.get("links", {})
    groups: list[Row] = [document.get("updates", {}), links]
    if "replicas" in (peers := links.get("peers", {})):
        groups.append({"replicas": peers["replicas"]})
    for row, name in [*((group, name) for group in groups for name in group), *ways]:
        link: Row = row[name] if isinstance(row[name], dict) else row
        for field in ("rate", "pageable") if link is not row else (name,):
            _add_unit(link, field, "B/s", below=SLOW_RATE)
        if link is not row:
            _add_unit(link, "latency", "s", least=_LONG)
    for row in (*(document.get(name, {}) for name in ("device", "host", "disk")), *tiers):
        for field in ("capacity", "pinned"):
            _add_unit(row, field, "B", below=FEW_BYTES)
    for joint in joint_rows(document):
        _add_unit(joint, "rate", "B/s", below=SLOW_RATE)
    return document


def _add_unit(row: Row, field: str, unit: str, *, below: float = inf, least: float = 0.0) -> None:
    """Make a number in this range text with its unit. Others, and none, stay as they are."""
    value = row.get(field)
    if isinstance(value, int | float) and least <= value < below:
        # The fewest digits that give the same float, without an exponent.
        row[field] = f"{Decimal(repr(value)):f}{unit}"


def _tier_to_document(tier: Tier) -> dict[str, Any]:
    links = (("write", tier.write), ("read", tier.read))
    document = {
        "name": tier.name,
        "capacity": tier.capacity,
        **{name: link and _link_to_document(link, unpinned=False) for name, link in links},
    }
    return {field: value for field, value in document.items() if value is not None}


def _link_to_document(link: Link, unpinned: bool) -> float | dict[str, Any]:
    # Read back with `pinned: 0`, the link takes its pageable rate, which is all that is left.
    pageable = link.rate if unpinned else link.pageable
    measured = [list(pair) for pair in link.measured]
    optional = (("latency", link.latency), ("pageable", pageable), ("measured", measured))
    more: dict[str, Any] = {name: value for name, value in optional if value}
    if isinstance(link, Replicas):
        more["count"] = link.count
    if isinstance(link, Peers):
        more["ranks"] = link.ranks
        if link.replicas is not None:
            more["replicas"] = _link_to_document(link.replicas, unpinned=False)
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


def _link(value: object, name: str) -> Link | None:
    """Parse a link: a rate, or {rate, latency, measured}; between device and host also pageable."""
    if not isinstance(value, dict):
        rate = _rate(value, name)
        return None if rate is None else Link(rate)
    try:
        row = mapping(cast(object, value), name)
        optional = ("latency", "measured", *(("pageable",) if name in ("d2h", "h2d") else ()))
        check_fields(row, ("rate",), optional)
        pageable = None if row.get("pageable") is None else parse_rate(row["pageable"])
        latency = parse_seconds(row.get("latency", 0.0))
        return Link(parse_rate(row["rate"]), latency, pageable, _measured(row.get("measured"), latency))
    except (InputError, ValueError) as error:
        raise ValueError(f"field {name!r}: {error}") from None


def _peers(value: object) -> Peers | None:
    """Parse the network between the ranks: {rate, latency, measured, ranks, replicas}."""
    if value is None:
        return None
    row = dict(mapping(value, "peers"))
    if "ranks" not in row:
        raise ValueError("field 'peers': how many ranks share it? Add `ranks: 8`")
    ranks = _count(row.pop("ranks"), "peers", "ranks", 1)
    replicas = _replicas(row.pop("replicas", None))
    # A mapping always gives a link.
    link = _link(row, "peers")
    assert link is not None
    return Peers(
        rate=link.rate,
        latency=link.latency,
        pageable=None,
        measured=link.measured,
        ranks=ranks,
        replicas=replicas,
    )


def _replicas(value: object) -> Replicas | None:
    """Parse the network between replicas: {count, rate, latency, measured}."""
    if value is None:
        return None
    row = dict(mapping(value, "replicas"))
    if "count" not in row:
        raise ValueError("field 'replicas': how many are there? Add `count: 2`")
    count = _count(row.pop("count"), "replicas", "count", 2)
    link = _link(row, "replicas")
    assert link is not None
    return Replicas(link.rate, link.latency, None, link.measured, count)


def _count(value: object, field: str, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST_RANKS:
        raise ValueError(
            f"field {field!r}: {name} is a whole number from {least} to {_MOST_RANKS:,}, not {value!r}"
        )
    return value


def _measured(value: object, latency: float) -> tuple[tuple[int, float], ...]:
    """Parse pairs of a size and the seconds of a copy of it. Both grow, from no bytes in the latency on."""
    found = [(0, latency)]
    for pair in [] if value is None else sequence(value, "measured"):
        one = sequence(pair, "measured")
        if len(one) != 2:
            raise ValueError(f"measured: {one} is not a size and seconds, like [1MB, 95us]")
        found.append((size(one[0], "measured"), parse_seconds(one[1])))
        (smaller, shorter), (larger, longer) = found[-2:]
        # Equal times are valid (latency hides small sizes); a time of 0 would be an infinite rate.
        if larger <= smaller or longer < shorter or not longer:
            pair = f"{smaller} B in {shorter:.6g} s, then {larger} B in {longer:.6g} s"
            raise ValueError(f"measured: sizes and seconds must grow from the latency on, not {pair}")
    return tuple(found[1:])


def _rate(value: object, name: str) -> float | None:
    try:
        return None if value is None else parse_rate(value)
    except InputError as error:
        raise ValueError(f"field {name!r}: {error}") from None
