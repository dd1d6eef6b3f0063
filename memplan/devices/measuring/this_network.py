"""This machine and the network between processes that torchrun has started, measured.

Rank 0 measures its machine while the others wait; then all measure the network together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ...graphs.errors import InputError
from ...graphs.machine import JointRate, Machine
from ..device.choice import best_device, device_of, use_device_of_rank
from ..sharded.meshes import Mesh
from ..sharded.network import measure_network
from ..sharded.ranks import Ranks
from .link_rates import SIZES, link_rates
from .rates import figure
from .this_machine import Measured, measure_machine

_START = "torchrun --nproc-per-node 2 -m memplan machine --network"


def measure_with_network(
    device: str | None,
    disk: Path | None,
    replicas: int | None,
    report: Callable[[str], None] = lambda _line: None,
) -> Measured | None:
    """Measure the machine and its network. All processes call it; only rank 0 gets what was measured.

    device, disk, report: see `measure_machine`.
    replicas: sets of ranks, between which gradients are averaged; None for one.
    Raises MemplanError, on all ranks.
    """
    if not dist.is_torchelastic_launched():
        raise InputError(f"--network measures between processes that torchrun starts: {_START}")
    count, device = int(os.environ["WORLD_SIZE"]), device or best_device()
    where = use_device_of_rank(device)
    if count < 2:
        raise InputError(f"--network needs two processes or more: {_START}")
    if replicas is not None and (count % replicas or count == replicas):
        raise InputError(
            f"--replicas {replicas} does not divide the {count} processes into sets of two or more: start "
            f"{2 * replicas}"
        )
    dist.init_process_group(device_of(where).collectives)
    try:
        ranks = Ranks(_mesh(where.type, count, replicas), where)
        try:
            found = ranks.together(
                lambda: None if ranks.rank else measure_machine(device, disk, report),
                "can't measure its machine",
            )
            report("measuring copies of all ranks at once")
            rates = ranks.together(lambda: copies_at_once(device), "can't measure its copies")
            slowest = min(ranks.gathered(rates))
            report("measuring the network")
            peers = measure_network(ranks)
        finally:
            ranks.end()
    finally:
        dist.destroy_process_group()
    if found is None:
        return None
    machine = with_slots(found.machine, slowest, ranks.on_node)
    return found._replace(machine=replace(machine, links=replace(machine.links, peers=peers)))


def copies_at_once(device: str) -> float:
    """Return the bytes/s of copies each way, both at once. All ranks call it at the same time."""
    return figure(link_rates(device, SIZES[-1:])[0].both[-1])


_SLOWER = 0.85
"""Ranks share a resource if one reaches no more than this part of what it does alone."""


def with_slots(machine: Machine, slowest: float, ranks: int) -> Machine:
    """Return a node's machine with what its ranks share on the way to host memory.

    slowest: bytes/s each way, both at once, of the slowest rank while all ranks of the node copy.
    """
    links = machine.links.d2h, machine.links.h2d
    if ranks < 2 or None in links or slowest > _SLOWER * _both_at_once(machine):
        return machine
    # Of both directions and of all ranks; no link alone may be faster than it.
    alone = max(link.rate for link in links if link)
    slots = JointRate(("d2h", "h2d"), max(2 * slowest * ranks, alone), slots=ranks)
    return replace(machine, joint_rates=(*machine.joint_rates, slots))


def _both_at_once(machine: Machine) -> float:
    """Return the bytes/s each way of one rank alone, by its links and what they share."""
    ways = ("d2h", "h2d")
    rates = [link.rate for link in (machine.links.d2h, machine.links.h2d) if link]
    if any(set(ways) <= {*group} for group in machine.shared):
        return min(rates) / 2
    return min([*rates, *(joint.rate / 2 for joint in machine.joint_rates if {*ways} <= {*joint.links})])


def _mesh(device: str, count: int, replicas: int | None) -> Mesh:
    if replicas is None:
        return True
    return init_device_mesh(device, (replicas, count // replicas), mesh_dim_names=("replicate", "shard"))
