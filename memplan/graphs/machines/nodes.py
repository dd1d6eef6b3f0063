"""A node whose devices run one rank each of sharded training: what a rank has of the machine.

Each device has its own links to the host. Host memory, what of it can be pinned, the CPU and all memories
below the host serve all ranks of the node: a rank has an equal part of them.
"""

from __future__ import annotations

from dataclasses import replace

from ..machine import Link, Machine, Updates


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
    return replace(
        machine,
        host_capacity=part(machine.host_capacity),
        pinned=part(machine.pinned),
        disk_capacity=part(machine.disk_capacity),
        links=replace(links, disk_read=turn(links.disk_read), disk_write=turn(links.disk_write)),
        updates=Updates(updates.device, rate(updates.host), updates.device_fused, rate(updates.host_fused)),
        deeper=tuple(
            replace(tier, capacity=part(tier.capacity), write=turn(tier.write), read=turn(tier.read))
            for tier in machine.deeper
        ),
    )
