"""Meshes of sharded training: which ranks spread weights among them, and which hold the same shares.

    (ranks,)              each rank holds a share of its own
    (replicas, ranks)     HSDP, in FSDP2's order: a row of ranks holds all shares, a column holds one, equal

Weights are gathered in a row. A gradient is scattered in a row, and its shares are all-reduced in columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from ...graphs.errors import InputError

Mesh = DeviceMesh | bool
"""Values of `shard=`: a mesh (ranks,) or (replicas, ranks), or True for all ranks of the default group."""

PLACEMENTS: tuple[tuple[Placement, ...], ...] = ((Shard(0),), (Replicate(), Shard(0)))
"""Placements of the DTensors that shares are, by the number of the mesh's dimensions less one."""


@dataclass(frozen=True)
class RankGroups:
    """The ranks of a mesh as this process sees them, by their numbers in the default group, growing.

    mesh: of DTensors; None if the module has placed its own. all: of the mesh. row: those with which this
    one spreads weights. column: those that hold the same shares. users: the user's group of the row.
    """

    mesh: DeviceMesh | None
    all: list[int]
    row: list[int]
    column: list[int]
    users: dist.ProcessGroup

    @property
    def in_first_row(self) -> bool:
        """Whether the first rank of all is in this row."""
        return self.all[0] in self.row


def rank_groups(mesh: Mesh, device: torch.device) -> RankGroups:
    """Return the groups of a mesh's ranks. Raises InputError for a mesh that is not one of running ranks."""
    if not dist.is_available() or not dist.is_initialized():
        raise InputError(
            "shard=: there is no process group: start the script by torchrun, and call "
            "torch.distributed.init_process_group() first; on one process leave shard= out"
        )
    if isinstance(mesh, bool):
        mesh = DeviceMesh(device.type, list(range(dist.get_world_size())))
    if mesh.device_type != device.type:
        raise InputError(
            f"shard= has a mesh of {mesh.device_type} devices, and the model is on {device.type}: make "
            f"the mesh by init_device_mesh({device.type!r}, (ranks,))"
        )
    if mesh.get_coordinate() is None:
        raise InputError("shard=: this process is not a rank of the mesh: call optimize on its ranks alone")
    *_replicas, users = mesh.get_all_groups()
    row = sorted(dist.get_process_group_ranks(users))
    if mesh.ndim == 1:
        return RankGroups(mesh, row, row, [dist.get_rank()], users)
    column = sorted(dist.get_process_group_ranks(mesh.get_group(0)))
    return RankGroups(mesh, sorted(mesh.mesh.flatten().tolist()), row, column, users)


def default_group() -> dist.ProcessGroup:
    """Return the group of all ranks."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def check_dimensions(mesh: Mesh) -> None:
    """Raise InputError for a mesh given as `shard=` that is neither (ranks,) nor (replicas, ranks).

    Names tell replicas from other dimensions, such as those of tensor parallelism.
    """
    if isinstance(mesh, bool) or mesh.ndim == 1:
        return
    names = mesh.mesh_dim_names or ()
    if mesh.ndim == 2 and names and "replic" in names[0] and "shard" in names[1]:
        return
    said = f" ({', '.join(names)})" if names else ""
    raise InputError(
        f"shard= has a mesh of {mesh.ndim} dimensions{said}: of two, the first must be called replicate and "
        f"the second shard (mesh_dim_names=); of others give the one over which weights are spread, like "
        f"mesh[{(names or ('dp',))[-1]!r}]"
    )
