"""Parts of a checkpoint's tensors that are DTensors of the module's own meshes.

    save   each part comes from one rank of rank 0's mesh: the first of those that hold it
    load   each rank copies its part out of the whole tensor

Files are those of one process. An ordinary parameter must be the same on all ranks: rank 0's is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from ...devices.sharded.local_tensors import local_tensor, part_of
from ...devices.sharded.shards import checksum
from ...devices.storage.host_access import at_home_value
from ...graphs.errors import InputError, MismatchError
from ...model.iteration import Iteration
from .checkpoint import ALONE
from .holding import Holding
from .sharded_holding import JointHolding, ShardedHolding


class _Part(NamedTuple):
    """A rank's part of a tensor. mesh: ranks of its mesh. first: whether no rank before it has the part."""

    where: tuple[slice, ...]
    shape: tuple[int, ...]
    mesh: list[int]
    first: bool


class PlacedHolding(JointHolding):
    """The local tensors that one of the ranks holds."""

    def check_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        super().check_tensors(tensors)
        own = {
            name: checksum(at_home_value(each).detach())
            for name, each in tensors.items()
            if isinstance(each, nn.Parameter) and not isinstance(each, DTensor)
        }
        # All ranks compare the same sums, so all of them raise: none is left in a collective.
        for rank, sums in enumerate(found := self._ranks.gathered(own)):
            if name := next((name for name in own if sums[name] != found[0][name]), None):
                raise MismatchError(
                    f"{name} has other values on rank {rank} than on rank 0, and is no DTensor: save it by "
                    "torch.distributed.checkpoint, or make it a DTensor"
                )

    def _own(self, tensor: DTensor, whole: Tensor) -> Tensor:
        return whole[_part(tensor).where].contiguous()

    def _collected(self, tensor: DTensor) -> Tensor:
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        # In the order of ranks: sends have no tags, and each rank sends its tensors in one order.
        for rank, part in self._senders(tensor).items():
            if rank == 0:
                values = _local(tensor)
            else:
                # Not into `whole` itself: a block along a later dimension is not contiguous.
                values = torch.empty(part.shape, dtype=tensor.dtype, device="cpu")
                self._ranks.receive(values, rank)
            whole[part.where] = values
        return whole

    def _give(self, tensor: DTensor) -> None:
        if self.rank in self._senders(tensor):
            self._ranks.send_to_first(_local(tensor))

    def _senders(self, tensor: DTensor) -> dict[int, _Part]:
        """Return the parts that make the whole tensor, by the rank that gives each."""
        found: list[_Part] = self._ranks.gathered(_part(tensor))
        return {
            rank: part
            for rank, part in enumerate(found)
            # A tensor of fewer rows than ranks leaves some without any; another mesh is a replica.
            if part.first and part.mesh == found[0].mesh and 0 not in part.shape
        }


def holding_of(iteration: Iteration) -> Holding:
    """Return the part of a checkpoint's tensors that this process holds. Raises InputError, one line."""
    if iteration.shards is not None:
        return ShardedHolding(iteration.shards)
    if iteration.ranks is None or not any(isinstance(x, DTensor) for x in iteration.module.parameters()):
        return ALONE
    check_placements(iteration.module)
    return PlacedHolding(iteration.ranks)


def check_placements(module: nn.Module) -> None:
    """Raise InputError, one line, for a DTensor whose parts are not blocks of the whole."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, DTensor):
            for placement in tensor.placements:
                # Not isinstance: parts of _StridedShard are interleaved, hence no blocks.
                if not placement.is_replicate() and type(placement) is not Shard:
                    raise InputError(
                        f"step.save and step.load do not gather {name}, placed as {placement}: use "
                        "torch.distributed.checkpoint, with the state_dict() of module and optimizer, on all "
                        "ranks"
                    )


def _part(tensor: DTensor) -> _Part:
    shape, offset, first = part_of(tensor)
    where = tuple(slice(start, start + length) for start, length in zip(offset, shape, strict=True))
    return _Part(where, shape, tensor.device_mesh.mesh.flatten().tolist(), first)


def _local(tensor: DTensor) -> Tensor:
    """Return a copy of the local tensor, contiguous and in host memory."""
    local = at_home_value(local_tensor(tensor)).detach()
    # On the CPU `.cpu().contiguous()` is the parameter itself, which training then changes.
    return torch.empty(local.shape, dtype=local.dtype, device="cpu").copy_(local)
