"""The field `shared` of a machine file: resources that several links use.

shared:
  - [disk_read, disk_write]                             # they take turns
  - {links: [d2h, peers], rate: 25GB/s}                 # a resource that carries both, up to a rate in all
  - {links: [d2h, h2d], rate: 40GB/s, slots: 4}         # the same for so many devices, each on its own slot
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..errors import InputError
from ..machine import JointRate, Link, Machine, Tier
from ..units import parse_rate
from .fields import Row, check_fields, mapping, sequence, twice

_MOST_GROUPS = 32


def shared_of(row: Row, below: Sequence[Tier]) -> tuple[tuple[tuple[str, ...], ...], tuple[JointRate, ...]]:
    """Parse the field of a machine: the groups that take turns, and those with a rate.

    below: the memories below the host. Raises ValueError with the fault.
    """
    tiers = [f"{tier.name}_{way}" for tier in below for way in ("write", "read")]
    known = ("d2h", "h2d", *tiers, "peers", "cpu")
    listed = sequence(row.get("shared") or [], "shared")
    if len(listed) > _MOST_GROUPS:
        raise ValueError(f"field 'shared' lists {len(listed)} groups: at most {_MOST_GROUPS} are read")
    joint = [_joint_rate(each, known) for each in joint_rows(row)]
    turns = [tuple(sequence(each, "shared")) for each in listed if not isinstance(each, dict)]
    for group in turns:
        _check_names(group, known)
        if len(group) < 2:
            raise ValueError(
                f"field 'shared': {list(group)} is no group: list two links or more, like [d2h, h2d]"
            )
    whole = [", ".join(sorted(group)) for group in turns]
    if len(set(whole)) < len(whole):
        raise ValueError(f"field 'shared': the group [{twice(whole)}] stands twice")
    return tuple(turns), tuple(joint)


def joint_rows(row: Row) -> list[Row]:
    """Return the groups that have a rate, as a machine's document has them."""
    return [cast(Row, each) for each in row.get("shared") or () if isinstance(each, dict)]


def _joint_rate(value: object, known: Sequence[str]) -> JointRate:
    row = mapping(value, "shared")
    check_fields(row, ("links", "rate"), ("slots",))
    links, slots = tuple(sequence(row["links"], "links")), row.get("slots", 1)
    _check_names(links, known)
    if type(slots) is not int or slots < 1:
        raise ValueError(f"field 'shared': slots {slots!r} is no number of devices, like 4")
    if "cpu" in links:
        raise ValueError("field 'shared': 'cpu' moves no bytes that have a rate: give a group without a rate")
    if len(links) < 2 and slots < 2:
        raise ValueError(
            f"field 'shared': {list(links)} with a rate is one link on one slot: list two links or more, or "
            "give slots, the devices that share it"
        )
    try:
        return JointRate(links, parse_rate(row["rate"]), slots)
    except InputError as error:
        raise ValueError(f"field 'shared': {error}") from None


def _check_names(group: Sequence[Any], known: Sequence[str]) -> None:
    if unknown := [name for name in group if name not in known]:
        raise ValueError(f"field 'shared': {unknown[0]!r} is not one of {', '.join(known)}")
    if len(set(group)) < len(group):
        raise ValueError(f"field 'shared': {twice(group)!r} stands twice in a group")


def check_joint_rates(machine: Machine) -> None:
    """Raise ValueError if a link alone is faster than a resource that it crosses."""
    links: dict[str, Link | None] = dict(vars(machine.links))
    for tier in machine.hierarchy.tiers[2:]:
        links |= {f"{tier.name}_write": tier.write, f"{tier.name}_read": tier.read}
    for joint in machine.joint_rates:
        for name in joint.links:
            link = links.get(name)
            if link is not None and link.rate > joint.rate:
                raise ValueError(
                    f"field 'shared': {name} alone has {link.rate:.4g} B/s, and what it shares carries "
                    f"{joint.rate:.4g} B/s in all: lower the link's rate, or raise that of the group"
                )


def shared_document(machine: Machine) -> list[Any]:
    """Return the field that `shared_of` reads back; empty: nothing is shared."""
    rates = [
        {
            "links": list(joint.links),
            "rate": joint.rate,
            **({"slots": joint.slots} if joint.slots > 1 else {}),
        }
        for joint in machine.joint_rates
    ]
    return [*map(list, machine.shared), *rates]
