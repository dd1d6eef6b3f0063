"""Names of torch's functional collectives, and of DTensors, that it does not promise to keep.

`torch.distributed._functional_collectives`, which DTensors use, calls operators of `_c10d_functional`: one
starts a collective of a group, given by its name, another waits for its result. A DTensor has its local
tensor in a slot. All were in torch 2.13.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from .torch_fakes import no_torch_function

_COPY: Any = Tensor.copy_
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


def reduces(target: Any) -> bool:
    """Tell whether an operator starts an all-reduce of a tensor."""
    return _is_functional(target) and target.overloadpacket.__name__ == "all_reduce"


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


def averaged(tensor: Tensor, group: str) -> Tensor:
    """Return the average of a tensor over a group."""
    made = torch.ops._c10d_functional.all_reduce(tensor, "avg", group)
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


def local_shape_and_offset(tensor: DTensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of a DTensor's local tensor, and where in the whole it begins."""
    made = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(made[0]), tuple(made[1])


_groups_made = Counter[tuple[int, ...]]()


def new_group(members: list[int], backend: str, timeout: timedelta) -> dist.ProcessGroup:
    """Create a group of these ranks of the default group; others need not take part.

    PyTorch names such a group after the number of groups that this process has, and waits for ever if another
    member has more. Here the name depends on its members, and how many groups they have made so.
    """
    key, module = tuple(members), cast("Any", dist.distributed_c10d)
    _groups_made[key] += 1
    before, number = module._hash_ranks_to_str, _groups_made[key]

    def name(ranks: list[int]) -> str:
        return f"memplan/{'_'.join(map(str, ranks))}/{number}"

    # `new_group` with local synchronization takes the group's name from it.
    module._hash_ranks_to_str = name
    try:
        made = dist.new_group(members, timeout, backend=backend, use_local_synchronization=True)
    finally:
        module._hash_ranks_to_str = before
    assert isinstance(made, dist.ProcessGroup)
    return made


LOCAL_OF_DTENSOR: Any = cast("Any", DTensor)._local_tensor
"""The slot of a DTensor from which all that PyTorch does with its values reads the local tensor."""


def noticing_reads(
    name: str,
    before: Callable[[Tensor], None],
    replacing: Callable[[Tensor], AbstractContextManager[None]],
) -> type[DTensor]:
    """Return a class of DTensors that calls `before` with the local tensor when that is first read.

    Shape and dtype lie in the DTensor itself. After the first read it is an ordinary one once more.

    replacing: surrounds a `copy_` into a DTensor; called with the local tensor.
    """

    def read(self: Any) -> Tensor:
        # By the slot's own getter: by name it would call this property without end.
        before(LOCAL_OF_DTENSOR.__get__(self))
        self.__class__ = DTensor
        return LOCAL_OF_DTENSOR.__get__(self)

    def call(
        _class: Any, function: Any, _types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        target, replaced = arguments[0] if arguments else None, nullcontext()
        if function == _COPY and isinstance(target, made):
            replaced = replacing(LOCAL_OF_DTENSOR.__get__(target))
        with replaced, no_torch_function():
            return function(*arguments, **(keywords or {}))

    local = property(read, lambda self, tensor: LOCAL_OF_DTENSOR.__set__(self, tensor))
    members: dict[str, Any] = {"__torch_function__": classmethod(call), "_local_tensor": local}
    # Without slots the layout is DTensor's, so that objects may change their class.
    made = type(name, (DTensor,), {"__slots__": (), **members})
    return made
