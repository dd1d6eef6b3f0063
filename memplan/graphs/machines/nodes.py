"""A node whose devices run one rank each of sharded training: what a rank has of the machine.

Each device has its own links to the host. Host memory, what of it can be pinned, the CPU and all memories
below the host serve all ranks of the node: a rank has an equal part of them. So it has of a resource with
several slots: all ranks run one schedule, so they copy at the same time.
"""

from __future__ import annotations

from dataclasses import replace

from ..machine import JointRate, Link, Machine, Updates


def part_of_node(machine: Machine, ranks: int) -> Machine:
    """Return what one of so many ranks has of a node's machine. ranks: on the node, 1 or more."""

    def part(capacity: int | None) -> int | None:
        return None if capacity is None else capacity // ranks

    def turn(link: Link | None) -> Link | None:
        # All ranks copy at once: in the mean each copy takes so many times as long.
        return None if link is None else link.slowed(ranks)

    def rate(whole: float | None) -> float | None:
        return None if whole is None else whole / ranks

    links, updates = machine.links, machine.updates
    own = {"d2h", "h2d", "peers"}

    def served(joint: JointRate) -> int:
        # What the disks share is the node's, as the disks are.
        return min(ranks, joint.slots) if own.issuperset(joint.links) else ranks

    joint_rates = tuple(
        replace(joint, rate=joint.rate / served(joint), slots=1) for joint in machine.joint_rates
    )

    def at_most(name: str, link: Link | None) -> Link | None:
        """Return the link no faster than what it shares."""
        if link is None:
            return None
        rate = min([link.rate, *(joint.rate for joint in joint_rates if name in joint.links)])
        return link.slowed(link.rate / rate) if rate < link.rate else link

    return replace(
        machine,
        host_capacity=part(machine.host_capacity),
        pinned=part(machine.pinned),
        disk_capacity=part(machine.disk_capacity),
        links=replace(
            links,
            d2h=at_most("d2h", links.d2h),
            h2d=at_most("h2d", links.h2d),
            disk_read=turn(links.disk_read),
            disk_write=turn(links.disk_write),
        ),
        joint_rates=joint_rates,
        updates=Updates(updates.device, rate(updates.host), updates.device_fused, rate(updates.host_fused)),
        deeper=tuple(
            replace(tier, capacity=part(tier.capacity), write=turn(tier.write), read=turn(tier.read))
            for tier in machine.deeper
        ),
    )
