"""A rank's part of a node: what all ranks take together is what the node has."""

from __future__ import annotations

import pytest
from memplan.graphs.machine import JointRate, Link, Links, Machine, Tier, Updates
from memplan.graphs.machines.nodes import part_of_node

LINKS = Links(d2h=24e9, h2d=Link(20e9, 1e-5), disk_read=Link(6e9, 1e-4), disk_write=3e9)
NODE = Machine(
    device_capacity=80,
    host_capacity=101,
    disk_capacity=1001,
    pinned=51,
    links=LINKS,
    updates=Updates(9e9, 2e9, 12e9, 8e9),
)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_devices_are_each_ranks_own_and_all_else_is_shared(ranks: int) -> None:
    part = part_of_node(NODE, ranks)
    assert part.device_capacity == 80
    assert (part.host_capacity, part.pinned, part.disk_capacity) == (101 // ranks, 51 // ranks, 1001 // ranks)
    assert (part.links.d2h, part.links.h2d) == (LINKS.d2h, LINKS.h2d)
    for whole, turn in ((LINKS.disk_read, part.links.disk_read), (LINKS.disk_write, part.links.disk_write)):
        assert whole is not None
        assert turn is not None
        # All ranks copy at once, so each copy takes so many times as long.
        assert turn.seconds(10**9) == pytest.approx(ranks * whole.seconds(10**9))
    assert part.updates == Updates(9e9, 2e9 / ranks, 12e9, 8e9 / ranks)


def test_what_is_unknown_stays_so() -> None:
    part = part_of_node(Machine(), 4)
    assert (part.host_capacity, part.pinned, part.disk_capacity) == (None, None, None)
    assert (part.links, part.updates) == (Machine().links, Machine().updates)


@pytest.mark.parametrize(("ranks", "served"), [(1, 1), (2, 2), (3, 2), (8, 2)])
def test_a_rate_with_slots_is_divided_by_those_that_are_taken(ranks: int, served: int) -> None:
    """Two slots for the copies of devices; disks are the node's, whatever shares them."""
    joint = (
        JointRate(("d2h", "h2d"), 30e9, slots=2),
        JointRate(("disk_read", "disk_write"), 7e9),
    )
    part = part_of_node(Machine(links=LINKS, joint_rates=joint), ranks)
    assert [one.rate for one in part.joint_rates] == [
        pytest.approx(30e9 / served),
        pytest.approx(7e9 / ranks),
    ]
    assert [one.slots for one in part.joint_rates] == [1, 1]
    for whole, link in ((24e9, part.links.d2h), (20e9, part.links.h2d)):
        assert link is not None
        assert link.rate == pytest.approx(
            min(whole, 30e9 / served)
        )  # a link is no faster than what it shares


def test_memories_below_the_disk_are_shared_too() -> None:
    tier = Tier("tape", 1000, Link(4e9), Link(2e9))
    (part,) = part_of_node(Machine(links=LINKS, disk_capacity=1, deeper=(tier,)), 4).deeper
    assert part == Tier("tape", 250, Link(1e9), Link(0.5e9))
