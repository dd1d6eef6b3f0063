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
from ..device.choice import best_device, device_of, use_device_of_rank
from ..sharded.meshes import Mesh
from ..sharded.network import measure_network
from ..sharded.ranks import Ranks
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
            report("measuring the network")
            peers = measure_network(ranks)
        finally:
            ranks.end()
    finally:
        dist.destroy_process_group()
    if found is None:
        return None
    links = replace(found.machine.links, peers=peers)
    return found._replace(machine=replace(found.machine, links=links))


def _mesh(device: str, count: int, replicas: int | None) -> Mesh:
    if replicas is None:
        return True
    return init_device_mesh(device, (replicas, count // replicas), mesh_dim_names=("replicate", "shard"))
