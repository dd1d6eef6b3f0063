"""Names of torch's functional collectives, and of DTensors, that it does not promise to keep.

`torch.distributed._functional_collectives`, which DTensors use, calls operators of `_c10d_functional`: one
starts a collective of a group, given by its name, another waits for its result. A DTensor has its local
tensor in a slot. All were in torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

_OPERATORS = "_c10d_functional"
_GROUP = "group_name"
_COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all_single",
    "broadcast",
)


def all_reduce() -> Any:
    """Return the operator that starts an all-reduce: of a tensor, a reduction and a group's name."""
    return torch.ops._c10d_functional.all_reduce.default


def starts_collective(target: Any) -> bool:
    """Tell whether an operator starts a collective, and changes nothing in place."""
    return _is_functional(target) and target.overloadpacket.__name__ in _COLLECTIVES


def gathers(target: Any) -> bool:
    """Tell whether an operator starts an all-gather of a tensor."""
    return _is_functional(target) and target.overloadpacket.__name__ == "all_gather_into_tensor"


def scatters(target: Any) -> bool:
    """Tell whether an operator starts a reduce-scatter of a tensor."""
    return _is_functional(target) and target.overloadpacket.__name__ == "reduce_scatter_tensor"


def communicates_otherwise(target: Any) -> bool:
    """Tell whether an operator communicates in another way: it changes tensors, or sends to one rank."""
    if getattr(target, "namespace", "") == "c10d":
        return True
    return _is_functional(target) and not waits(target) and not starts_collective(target)


def _is_functional(target: Any) -> bool:
    return getattr(target, "namespace", "") == _OPERATORS


def waits(target: Any) -> bool:
    """Tell whether an operator waits for the result of a collective."""
    return getattr(target, "overloadpacket", None) is torch.ops._c10d_functional.wait_tensor


def wait(result: Tensor) -> None:
    """Wait for the result of a collective."""
    torch.ops._c10d_functional.wait_tensor(result)


def all_gathered(part: Tensor, size: int, group: str) -> Tensor:
    """Return the rows of all ranks of a group, so many, in their order."""
    made = torch.ops._c10d_functional.all_gather_into_tensor(part, size, group)
    return torch.ops._c10d_functional.wait_tensor(made)


def averaged_part(whole: Tensor, size: int, group: str) -> Tensor:
    """Return this rank's rows of the average over a group, of so many ranks."""
    made = torch.ops._c10d_functional.reduce_scatter_tensor(whole, "avg", size, group)
    return torch.ops._c10d_functional.wait_tensor(made)


def place_of_group(operator: Any) -> int:
    """Return which argument of an operator that starts a collective is its group."""
    return [argument.name for argument in operator._schema.arguments].index(_GROUP)


def name_of_group(group: Any) -> str:
    """Return the name of a group, which may be given by it."""
    return group if isinstance(group, str) else group.group_name


def group_named(name: str) -> dist.ProcessGroup:
    """Return the group of this name."""
    return dist.distributed_c10d._resolve_process_group(name)  # pyright: ignore[reportArgumentType]


def ranks_of_group(name: str) -> list[int]:
    """Return the ranks of a group, by their numbers in the default group, growing."""
    return sorted(dist.get_process_group_ranks(group_named(name)))


def root_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh that this one is a part of, itself if it is none."""
    return cast("Any", mesh)._get_root_mesh()


LOCAL_OF_DTENSOR: Any = cast("Any", DTensor)._local_tensor
"""The slot of a DTensor from which all that PyTorch does with its values reads the local tensor."""


def noticing_reads(name: str, before: Callable[[Tensor], None]) -> type[DTensor]:
    """Return a class of DTensors that calls `before` with the local tensor when that is first read.

    Shape and dtype lie in the DTensor itself. After the first read it is an ordinary one once more.
    """

    def read(self: Any) -> Tensor:
        before(LOCAL_OF_DTENSOR.__get__(self))
        self.__class__ = DTensor
        return LOCAL_OF_DTENSOR.__get__(self)

    local = property(read, lambda self, tensor: LOCAL_OF_DTENSOR.__set__(self, tensor))
    return type(name, (DTensor,), {"__slots__": (), "_local_tensor": local})
